// Questions to the person, in dialogs of the browser: focus stays inside, Escape closes, focus returns.
import { h, iconButton } from './dom.js';

// Shows a dialog with `content`; resolves with what the form's button is worth, '' when it was left.
function show(label, content, className = '') {
  return new Promise((resolve) => {
    const close = iconButton('close', 'Close', () => dialog.close(''));
    const form = h('form', { method: 'dialog' }, h('div.dialog-head', {}, h('h2', {}, label), close), ...content);
    const dialog = h('dialog', { ariaLabel: label, className, onclose: () => {
      dialog.remove();
      resolve(dialog.returnValue);
    }, onclick: (event) => {
      if (event.target === dialog) dialog.close('');
    } }, form);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      dialog.close(event.submitter?.value ?? '');
    });
    document.getElementById('main').append(dialog);  // a landmark
    dialog.showModal();
    (dialog.querySelector('[data-first]') ?? close).focus();
  });
}

const buttons = (...list) => h('div.dialog-buttons', {}, ...list);
const cancel = () => h('button.button', { type: 'button', onclick: ({ target }) => target.closest('dialog').close('') }, 'Cancel');

export async function confirmDelete(title) {
  const name = title || 'this conversation';
  return await show('Delete?', [h('p', {}, `“${name}” and its branches will be gone from this browser.`),
    buttons(cancel(), h('button.button.danger', { type: 'submit', value: 'yes', 'data-first': '' }, 'Delete'))]) === 'yes';
}

// The new name, or '' when it stays.
export async function askName(title) {
  const field = h('input', { type: 'text', value: title, maxLength: 120, ariaLabel: 'Name', 'data-first': '' });
  setTimeout(() => field.select());
  const answer = await show('Rename', [field, buttons(cancel(), h('button.button.primary', { type: 'submit', value: 'yes' }, 'Rename'))]);
  return answer === 'yes' ? field.value.trim() : '';
}

// {key, remember}, or null.
export async function askKey(message) {
  const field = h('input', { type: 'password', autocomplete: 'off', required: true, spellcheck: false, id: 'key-field', 'data-first': '' });
  const remember = h('input', { type: 'checkbox', id: 'key-remember' });
  const answer = await show('API key', [
    h('p', {}, 'This server asks for a key.'), message ? h('p.where', {}, message) : null,
    h('label', { for: 'key-field' }, 'Key'), field,
    h('label.check', { for: 'key-remember' }, remember, ' Remember it in this browser'),
    h('p.where', {}, 'Otherwise it is forgotten when this tab closes. It is sent to this server only.'),
    buttons(cancel(), h('button.button.primary', { type: 'submit', value: 'yes' }, 'Use key'))], 'narrow');
  return answer === 'yes' && field.value.trim() ? { key: field.value.trim(), remember: remember.checked } : null;
}

const kShortcuts = [
  ['Writing', [['Enter', 'Send'], ['Shift Enter', 'New line'], ['↑', 'Edit the last message, in an empty field'], ['Esc', 'Stop the answer, or leave editing']]],
  ['Conversations', [['Ctrl K', 'Search'], ['Alt N', 'New conversation'], ['Alt S', 'Show or hide conversations'], ['Alt P', 'Parameters'], ['Alt T', 'Light, dark, or as the system'], ['/', 'To the message field'], ['?', 'This help']]],
  ['Turns', [['Alt ↑ ↓', 'To the turn above or below'], ['← →', 'Previous or next branch'], ['E', 'Edit'], ['R', 'Ask again'], ['C', 'Copy'], ['F', 'Fork into a new conversation'], ['T', 'Open or fold the reasoning']]],
];

export function showHelp() {
  const mac = /Mac|iPhone|iPad/.test(navigator.platform);
  const keys = (text) => text.split(' ').map((key) => h('kbd', {}, mac && key === 'Ctrl' ? '⌘' : mac && key === 'Alt' ? '⌥' : key));
  return show('Keyboard', [h('div.shortcuts', {}, ...kShortcuts.map(([title, list]) => h('section', {}, h('h3', {}, title),
    h('ul', {}, ...list.map(([combination, meaning]) => h('li', {}, h('span.keys', {}, ...keys(combination)), h('span', {}, meaning))))))),
    h('p.where', {}, 'The keys of turns work while a turn has the focus.')], 'wide');
}
