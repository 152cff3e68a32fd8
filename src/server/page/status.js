// Whether the server is there, and other things that a person has to know: lines above the turns.
import { events, loadModels } from './chat.js';
import { announce, byId, h, iconButton } from './dom.js';

const kPassing = 5000;
const kAsk = 20000;  // ms between questions while all is well
const kSlowest = 10000;  // ms between tries while it is not

// Shows, replaces or (with '') removes the notice of this kind.
export function notice(kind, text, { passing = false, fixed = false } = {}) {
  const area = byId('notices');
  area.querySelector(`[data-kind="${kind}"]`)?.remove();
  if (!text) return;
  const close = fixed ? null : iconButton('close', 'Dismiss', () => line.remove());
  const line = h('div.notice', { 'data-kind': kind, role: passing ? undefined : 'alert' }, h('p', {}, text), close);
  area.append(line);
  if (passing) setTimeout(() => line.remove(), kPassing);
}

// Watches /health. ready(): called whenever the server is there again.
export class Watch {
  constructor(ready) {
    this.ready = ready;
    this.down = false;
    this.timer = 0;
    this.wait = 1000;
    document.addEventListener('visibilitychange', () => { if (!document.hidden) this.look(); });
  }

  lost() {
    if (!this.down) this.wait = 1000;
    this.look();
  }

  async look() {
    clearTimeout(this.timer);
    let problem = null;
    try {
      const response = await fetch('/health', { cache: 'no-store', signal: AbortSignal.timeout(5000), credentials: 'omit' });
      if (!response.ok) problem = await this.#words(response);
      else if ((await response.json()).status === 'loading') problem = 'The server is loading its model; trying again…';
    } catch {
      problem = 'The server cannot be reached. Your conversations are safe; trying again…';
    }
    if (problem) {
      if (!this.down || problem !== this.problem) notice('server', problem, { fixed: true });
      this.down = true;
      this.problem = problem;
      this.timer = setTimeout(() => this.look(), this.wait);
      this.wait = Math.min(kSlowest, this.wait * 1.6);
      return;
    }
    if (this.down) {
      this.down = false;
      notice('server', '');
      notice('back', 'The server is back.', { passing: true });
      announce('The server is back');
      this.ready();
    }
    this.timer = setTimeout(() => this.look(), document.hidden ? kAsk * 6 : kAsk);
  }

  async #words(response) {
    try {
      const body = await response.json();
      const words = body.error?.message ?? body.reason ?? body.message;
      if (words) return `The server cannot answer: ${words}`;
    } catch {
      // No words.
    }
    return `The server cannot answer (status ${response.status}); trying again…`;
  }
}

// The models, with a word when they cannot be had.
export async function fetchModels(watch) {
  try {
    await loadModels();
    notice('models', '');
  } catch (error) {
    if (error.status === 0) watch.lost();
    else notice('models', error.message);
    events.dispatchEvent(new CustomEvent('models'));
  }
}
