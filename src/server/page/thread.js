// The open conversation on the screen: its turns are drawn once and kept while they stay on the path.
import { AnswerView } from './answer_view.js';
import { chat, events, isRunning, openCalls, path } from './chat.js';
import { announce, byId, h } from './dom.js';
import { plainText, parseInline } from './inline.js';
import { Follower } from './scroll.js';
import { resultForm, resultsIn, toolView, userView } from './turn.js';

const kExamples = ['What is a sailing ship?', 'Explain what an index is in a database.', 'Quote a verse of the Bible.'];

export class Thread {
  // editMessage(node), useExample(text)
  constructor({ editMessage, useExample }) {
    this.element = byId('thread');
    this.follower = new Follower(byId('scroller'), byId('to-end'));
    this.views = new Map();
    this.form = null;
    this.actions = {
      edit: editMessage,
      grew: () => this.follower.grew(),
      branched: (node, step) => this.#branched(node, step),
    };
    this.useExample = useExample;
    events.addEventListener('opened', () => this.#opened());
    events.addEventListener('turns', () => this.draw());
    events.addEventListener('answer', ({ detail }) => this.views.get(detail.node.id)?.redraw());
    events.addEventListener('running', ({ detail }) => this.#running(detail));
    // Durations go on while no token comes.
    setInterval(() => {
      const run = chat.runs.get(chat.conversation.id);
      if (run) this.views.get(run.node.id)?.redraw();
    }, 250);
  }

  #opened() {
    this.element.replaceChildren();
    this.views.clear();
    this.form = null;
    this.draw();
    this.follower.toEnd();
  }

  draw() {
    const turns = path();
    const wanted = turns.map(({ node }) => node.id);
    // A node that another tab replaced is another object: drawn anew.
    for (const [id, view] of this.views) {
      if (!wanted.includes(id) || chat.conversation.nodes[id] !== view.node) {
        view.element.remove();
        this.views.delete(id);
      }
    }
    let before = null;
    for (const turn of turns) {
      let view = this.views.get(turn.node.id);
      if (!view) {
        view = this.#make(turn.node);
        this.views.set(turn.node.id, view);
        if (before) before.after(view.element);
        else this.element.prepend(view.element);
      }
      view.place(turn);
      view.draw?.();
      view.element.classList.toggle('last', turn === turns.at(-1));
      before = view.element;
    }
    this.#drawForm(turns.at(-1)?.node);
    this.#drawWelcome(turns.length === 0);
    this.follower.grew();
  }

  #make(node) {
    if (node.role === 'user') return userView(node, this.actions);
    return node.role === 'tool' ? toolView(node, this.actions) : new AnswerView(node, this.actions);
  }

  #drawForm(last) {
    const calls = openCalls();
    if (this.form && this.form.node === last && calls.length > 0) return;
    this.form?.element.remove();
    this.form = null;
    if (calls.length === 0) return;
    const element = resultForm(calls);
    this.form = { node: last, element };
    this.views.get(last.id).body.append(element);
    if (document.activeElement === document.body || document.activeElement === byId('composer-text')) element.querySelector('textarea').focus({ preventScroll: true });
  }

  // What is typed as results of open tool calls, empty ones too; undefined when there are none.
  typedResults() {
    return this.form ? resultsIn(this.form.element) : undefined;
  }

  #drawWelcome(empty) {
    const welcome = byId('welcome');
    if (welcome.hidden === !empty) return;
    welcome.hidden = !empty;
    if (!empty) return;
    welcome.replaceChildren(h('h2', {}, 'What would you like to know?'),
      h('ul.examples', {}, ...kExamples.map((text) => h('li', {}, h('button.text-button', { type: 'button', onclick: () => this.useExample(text) }, text)))));
  }

  #running({ conversation, node }) {
    const ours = conversation.id === chat.conversation.id;
    if (isRunning(conversation.id)) {
      if (ours) {
        announce('Answering');
        this.follower.toEnd();
      }
      return;
    }
    if (!ours) return;
    if (node.state === 'error') announce(`Error: ${node.error.message}`);
    else if (node.toolCalls.length > 0) announce(`The answer calls ${node.toolCalls.map((call) => call.name).join(', ')}. Enter the results.`);
    else announce(`Answer: ${plainText(parseInline(node.content.slice(0, 600)))}${node.content.length > 600 ? ' and more' : ''}`);
  }

  // After a branch was chosen, the choice stays in sight and under the hand.
  #branched(node, step) {
    const turn = path().find((one) => one.node.parent === node.parent);
    const view = this.views.get(turn.node.id);
    this.follower.release();
    const button = view.branches.querySelector(`button[data-step="${step}"]:not(:disabled)`) ?? view.branches.querySelector('button:not(:disabled)');
    (button ?? view.element).focus({ preventScroll: true });
    view.element.scrollIntoView({ block: 'nearest' });
    announce(`Branch ${turn.index + 1} of ${turn.count}`);
  }

  // Moves the focus to the turn above or below; from nowhere, to the last one.
  step(by) {
    const all = [...this.element.querySelectorAll('.turn')];
    const at = all.indexOf(document.activeElement?.closest?.('.turn'));
    const next = at < 0 ? all.at(-1) : all[at + by];
    if (!next) return false;
    if (by < 0) this.follower.release();
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: 'nearest' });
    return true;
  }

  mark(id) {
    for (const [key, view] of this.views) view.element.classList.toggle('edited', key === id);
    this.element.classList.toggle('editing', Boolean(id));
  }
}
