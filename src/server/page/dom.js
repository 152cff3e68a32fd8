// Small helpers for elements. Nothing here or elsewhere makes elements out of text: the page's policy forbids it.

// h('button.quiet', {type: 'button', onclick, ariaLabel: 'Copy'}, child, ...). Children may be null, text or nodes.
export function h(spec, properties = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  const element = document.createElement(tag || 'div');
  if (classes.length) element.className = classes.join(' ');
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name.startsWith('data-') || name.startsWith('aria-') || name === 'for' || name === 'role') element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  use.setAttribute('href', `#i-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onclick, more = {}) {
  return h('button.icon-button', { type: 'button', title: label, ariaLabel: label, onclick, ...more }, icon(name));
}

const kNumber = new Intl.NumberFormat('en-GB');
export const count = (number, noun) => `${kNumber.format(number)} ${noun}${number === 1 ? '' : 's'}`;
export const number = (value) => kNumber.format(value);

export function seconds(milliseconds) {
  const s = milliseconds / 1000;
  if (s < 10) return `${s.toFixed(s < 1 ? 2 : 1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
}

// Calls `draw` once in the next frame however often it is asked for; hidden pages get a slow timer instead of frames.
export function onNextFrame(draw) {
  let asked = false;
  const run = () => {
    asked = false;
    draw();
  };
  return () => {
    if (asked) return;
    asked = true;
    if (document.hidden) setTimeout(run, 500);
    else requestAnimationFrame(run);
  };
}

// Copies text and shows on the button that it was done. Also works where there is no secure context.
export async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h('textarea', { value: text, className: 'unseen' });
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  const use = button.querySelector('use');
  const before = use.getAttribute('href');
  if (before === '#i-check') return;
  use.setAttribute('href', done ? '#i-check' : '#i-close');
  announce(done ? 'Copied' : 'Could not copy');
  setTimeout(() => use.setAttribute('href', before), 1500);
}

// Says something once to people who listen to the page.
export function announce(text) {
  byId('announcer').textContent = '';
  setTimeout(() => { byId('announcer').textContent = text; }, 50);
}
