// An answer as it is written and as it stays: reasoning, text, tool calls, what went wrong, and its numbers.
import { endNote, isThinking, numbersOf, prettyArguments } from './answer.js';
import { fork, retry } from './chat.js';
import { copyText, count, h, icon, number, onNextFrame, seconds } from './dom.js';
import { MarkdownView } from './render.js';
import { TurnView } from './turn.js';

const isLive = (node) => node.state === 'waiting' || node.state === 'streaming';

export class AnswerView extends TurnView {
  constructor(node, actions) {
    super(node, 'Answer', actions);
    this.reasoningText = h('div.reasoning-text.prose');
    this.summary = h('span');
    this.reasoning = h('details.reasoning', { hidden: true, ontoggle: () => this.#drawReasoning(!isLive(node)) },
      h('summary', {}, this.summary), this.reasoningText);
    this.reasoningView = new MarkdownView(this.reasoningText);
    this.content = h('div.prose');
    this.contentView = new MarkdownView(this.content);
    this.calls = h('div.calls', { hidden: true });
    this.waiting = h('p.waiting', { hidden: true });
    this.note = h('p.note', { hidden: true });
    this.error = h('div.error', { role: 'alert', hidden: true });
    this.numbers = h('p.numbers', { hidden: true });
    this.body.append(this.reasoning, this.content, this.calls, this.waiting, this.note, this.error);
    this.foot.append(this.numbers);
    this.copyButton = this.addTool('copy', 'Copy', (button) => copyText(node.content, button));
    this.retryButton = this.addTool('retry', 'Another answer', () => retry(node.id));
    this.forkButton = this.addTool('fork', 'Fork into a new conversation', () => fork(node.id));
    this.toggleReasoning = () => { if (!this.reasoning.hidden) this.reasoning.open = !this.reasoning.open; };
    this.redraw = onNextFrame(() => {
      this.draw();
      actions.grew();
    });
    this.draw();
  }

  draw() {
    const node = this.node;
    const live = isLive(node);
    const now = performance.now();
    const numbers = numbersOf(node, now);
    this.element.classList.toggle('live', live);
    this.element.setAttribute('aria-busy', String(live));
    this.#drawReasoning(!live, numbers);
    this.contentView.set(node.content, !live);
    this.#drawCalls();
    this.waiting.hidden = node.state !== 'waiting';
    if (node.state === 'waiting' && node.timing.sent) {
      const waited = now - node.timing.sent;
      this.waiting.textContent = waited < 1000 ? 'Waiting for the first token' : `Waiting for the first token, ${seconds(waited)}`;
    }
    const note = endNote(node);
    this.note.hidden = !note;
    this.note.textContent = note;
    this.#drawError();
    this.#drawNumbers(numbers, live);
    this.tools.hidden = live;
  }

  #drawReasoning(finished, numbers) {
    const node = this.node;
    this.reasoning.hidden = node.reasoning === '';
    if (this.reasoning.open) this.reasoningView.set(node.reasoning, finished || !isThinking(node));
    if (!numbers || node.reasoning === '') return;
    const thinking = isThinking(node);
    const tokens = numbers.reasoningTokens ?? (thinking ? numbers.tokens : null);
    const parts = [`${thinking ? 'Thinking' : 'Thought for'} ${seconds(numbers.thinking)}`];
    if (tokens !== null) parts.push(`${thinking && !numbers.exact ? 'about ' : ''}${count(tokens, 'token')}`);
    this.summary.textContent = parts.join(', ');
    this.reasoning.classList.toggle('thinking', thinking);
  }

  #drawCalls() {
    const { toolCalls, state } = this.node;
    this.calls.hidden = toolCalls.length === 0;
    toolCalls.forEach((call, i) => {
      let card = this.calls.children[i];
      if (!card) {
        card = h('section.call', {}, h('h3', {}, icon('tool'), h('span')), h('pre', { tabIndex: 0 }, h('code')));
        this.calls.append(card);
      }
      const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
      put(card.querySelector('h3 span'), call.name || '…');
      put(card.querySelector('code'), state === 'streaming' ? call.arguments : prettyArguments(call.arguments));
    });
  }

  #drawError() {
    const { error, state } = this.node;
    this.error.hidden = state !== 'error';
    if (state !== 'error' || this.error.firstChild) return;
    const where = [error.status ? `Status ${error.status}` : null, error.code, error.param ? `parameter ${error.param}` : null].filter(Boolean);
    this.error.append(h('p', {}, error.message));
    if (where.length > 0) this.error.append(h('p.where', {}, where.join(', ')));
    this.error.append(h('button.button', { type: 'button', onclick: () => retry(this.node.id) }, icon('retry'), 'Try again'));
    if (error.retryAfter) this.error.append(h('span.where', {}, `The server asks to wait ${seconds(error.retryAfter * 1000)}.`));
  }

  #drawNumbers(numbers, live) {
    const parts = [];
    const about = numbers.exact ? '' : 'about ';
    if (numbers.rate !== null) parts.push(`${about}${numbers.rate < 10 ? numbers.rate.toFixed(1) : number(Math.round(numbers.rate))} tokens/s`);
    if (numbers.tokens > 0) parts.push(`${about && parts.length === 0 ? about : ''}${count(numbers.tokens, 'token')}`);
    if (numbers.first !== null) parts.push(`first after ${seconds(numbers.first)}`);
    if (numbers.prompt !== null) parts.push(`prompt ${number(numbers.prompt)}${numbers.cached === null ? '' : `, ${number(numbers.cached)} cached`}`);
    this.numbers.hidden = parts.length === 0;
    this.numbers.replaceChildren(...parts.map((part) => h('span', {}, part)));
    this.numbers.title = live ? '' : this.#settings();
  }

  #settings() {
    const { settings = {}, model } = this.node;
    const shown = Object.entries(settings).filter(([, value]) => typeof value !== 'object').map(([name, value]) => `${name} ${value}`);
    return [model, ...shown].filter(Boolean).join(', ');
  }
}
