// Light, dark, or as the system says. Remembered; asked in this order by the button.
import { announce, byId, icon } from './dom.js';

const kTheme = 'mdi-theme';
const kNames = { auto: 'as the system', light: 'light', dark: 'dark' };
const kIcons = { auto: 'auto', light: 'sun', dark: 'moon' };
const dark = matchMedia('(prefers-color-scheme: dark)');
let choice = 'auto';

function apply() {
  document.documentElement.dataset.theme = choice === 'auto' ? (dark.matches ? 'dark' : 'light') : choice;
  const button = byId('theme');
  button.replaceChildren(icon(kIcons[choice]));
  button.title = `Theme: ${kNames[choice]} (Alt+T)`;
  button.setAttribute('aria-label', `Theme: ${kNames[choice]}`);
}

export function nextTheme() {
  const order = ['auto', dark.matches ? 'light' : 'dark', dark.matches ? 'dark' : 'light'];
  choice = order[(order.indexOf(choice) + 1) % order.length];
  try {
    localStorage.setItem(kTheme, choice);
  } catch {
    // It lasts as long as the page.
  }
  apply();
  announce(`Theme: ${kNames[choice]}`);
}

export function startTheme() {
  try {
    const kept = localStorage.getItem(kTheme);
    if (kept in kNames) choice = kept;
  } catch {
    // As the system.
  }
  dark.addEventListener('change', apply);
  byId('theme').addEventListener('click', nextTheme);
  apply();
}
