// A person's turns and tool results, and what all turns have: branches, actions, focus.
import { retry, send, switchBranch, fork } from './chat.js';
import { copyText, h, iconButton } from './dom.js';
import { loadImage } from './store.js';

// Built by answer_view.js, too. `editMessage(node)` opens the composer on a message.
export class TurnView {
  constructor(node, label, actions) {
    this.node = node;
    this.actions = actions;
    this.branches = h('span.branches', { role: 'group', ariaLabel: 'Branches' });
    this.tools = h('span.tools');
    this.foot = h('div.actions', {}, this.branches, this.tools);
    this.body = h('div.body', {}, h('h2.unseen', {}, label));
    this.element = h('article.turn', { tabIndex: -1, ariaLabel: label, 'data-id': node.id }, this.body, this.foot);
    this.element.classList.add(node.role);
    this.element.addEventListener('keydown', (event) => this.#key(event));
  }

  place({ index, count }) {
    if (this.index === index && this.count === count) return;
    const focused = this.branches.contains(document.activeElement) ? document.activeElement.dataset.step : null;
    this.index = index;
    this.count = count;
    this.branches.hidden = count < 2;
    if (count < 2) return;
    const step = (by, name, label) => iconButton(name, label, () => this.#branch(by), { disabled: !(index + by >= 0 && index + by < count), 'data-step': by });
    const now = h('span', {}, `${index + 1} / ${count}`);
    this.branches.replaceChildren(step(-1, 'left', 'Previous branch'), now, step(1, 'right', 'Next branch'));
    if (focused) (this.branches.querySelector(`button[data-step="${focused}"]:not(:disabled)`) ?? this.element).focus();
  }

  #branch(step) {
    if (switchBranch(this.node.id, step)) this.actions.branched(this.node, step);
  }

  addTool(name, label, onclick) {
    const button = iconButton(name, label, () => onclick(button));
    this.tools.append(button);
    return button;
  }

  // Keys of a focused turn: the same as its buttons.
  #key(event) {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { ArrowLeft: () => this.#branch(-1), ArrowRight: () => this.#branch(1), '[': () => this.#branch(-1),
      ']': () => this.#branch(1), c: () => this.copyButton?.click(), e: () => this.editButton?.click(), r: () => this.retryButton?.click(),
      f: () => this.forkButton?.click(), t: () => this.toggleReasoning?.() };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

export function userView(node, actions) {
  const view = new TurnView(node, 'Your message', actions);
  if (node.images?.length) view.body.append(pictures(node.images));
  if (node.text) view.body.append(h('div.said', {}, node.text));
  view.editButton = view.addTool('edit', 'Edit (makes a branch)', () => actions.edit(node));
  view.copyButton = view.addTool('copy', 'Copy', (button) => copyText(node.text, button));
  view.forkButton = view.addTool('fork', 'Fork into a new conversation', () => fork(node.id));
  view.retryButton = view.addTool('retry', 'Ask again', () => retry(node.id));
  return view;
}

function pictures(ids) {
  const list = h('ul.pictures', { ariaLabel: 'Images' });
  for (const id of ids) {
    const item = h('li');
    list.append(item);
    loadImage(id).then((image) => {
      if (!image) item.append(h('span.lost', {}, 'Image not kept'));
      else item.append(h('img', { src: image.url, alt: image.name, title: `${image.name}, ${image.width} × ${image.height}` }));
    });
  }
  return list;
}

export function toolView(node, actions) {
  const view = new TurnView(node, 'Tool results', actions);
  for (const result of node.results) {
    const text = h('pre', { tabIndex: 0 }, result.content || '(empty)');
    view.body.append(h('section.result', {}, h('h3', {}, `Result of ${result.name}`), text));
  }
  view.copyButton = view.addTool('copy', 'Copy', (button) => copyText(node.results.map((result) => result.content).join('\n\n'), button));
  view.forkButton = view.addTool('fork', 'Fork into a new conversation', () => fork(node.id));
  return view;
}

// The form for the results of `calls`; what is typed is asked for with resultsIn().
export function resultForm(calls) {
  const form = h('form.results', { ariaLabel: 'Results of the tools', onsubmit: (event) => {
    event.preventDefault();
    send('', [], { results: resultsIn(form) });
  } });
  for (const call of calls) {
    const id = `result-${call.id}`;
    const field = h('textarea', { id, rows: 2, spellcheck: false, placeholder: 'What the tool gives back, as text or JSON',
      'data-call': call.id, 'data-name': call.name, onkeydown: (event) => {
        if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          const fields = [...form.querySelectorAll('textarea')];
          const next = fields[fields.indexOf(field) + 1];
          if (next) next.focus();
          else form.requestSubmit();
        }
      } });
    form.append(h('label', { for: id }, 'Result of ', h('code', {}, call.name)), field);
  }
  form.append(h('button.button.primary', { type: 'submit' }, calls.length > 1 ? 'Send results' : 'Send result'));
  return form;
}

export const resultsIn = (form) => [...form.querySelectorAll('textarea')].map((field) => (
  { id: field.dataset.call, name: field.dataset.name, content: field.value }));
