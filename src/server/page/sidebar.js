// The conversations of this browser: list, search, rename, delete, export and import.
import { chat, events, openNew, remove, rename } from './chat.js';
import { askName, confirmDelete } from './dialogs.js';
import { announce, byId, count, h, iconButton } from './dom.js';
import { exportConversations, importConversations } from './exchange.js';
import { listConversations, searchConversations } from './store.js';

const kMostShown = 300;

function groupOf(time) {
  const day = (back) => new Date(new Date().setHours(0, 0, 0, 0) - back * 86400000);
  if (time >= day(0)) return 'Today';
  if (time >= day(1)) return 'Yesterday';
  if (time >= day(7)) return 'Last seven days';
  return new Date(time).toLocaleDateString('en-GB', { month: 'long', year: 'numeric' });
}

const narrow = matchMedia('(max-width: 820px)');

export function showSidebar(on) {
  document.body.classList.toggle('no-sidebar', !on);
  byId('scrim').hidden = !(on && narrow.matches);
  if (!narrow.matches) {
    try {
      localStorage.setItem('mdi-sidebar', on ? 'open' : 'closed');
    } catch {
      // It opens again next time.
    }
  }
}

export const toggleSidebar = () => {
  const on = document.body.classList.contains('no-sidebar');
  showSidebar(on);
  byId(on ? 'close-sidebar' : 'open-sidebar').focus();
};

export class Sidebar {
  constructor(notice) {
    this.notice = notice;
    this.list = byId('conversations');
    this.found = null;  // of a search: id -> excerpt
    this.asked = 0;
    let open = true;
    try {
      open = localStorage.getItem('mdi-sidebar') !== 'closed';
    } catch {
      // As it is.
    }
    showSidebar(open && !narrow.matches);
    narrow.addEventListener('change', () => showSidebar(!narrow.matches));
    byId('open-sidebar').addEventListener('click', toggleSidebar);
    byId('close-sidebar').addEventListener('click', toggleSidebar);
    byId('scrim').addEventListener('click', () => showSidebar(false));
    byId('new-chat').addEventListener('click', () => this.startNew());
    byId('export').addEventListener('click', () => this.#report(exportConversations()));
    byId('import').addEventListener('click', () => byId('import-file').click());
    byId('import-file').addEventListener('change', ({ target }) => {
      const [file] = target.files;
      target.value = '';
      if (file) this.#report(importConversations(file));
    });
    const search = byId('search');
    search.addEventListener('input', () => this.#search());
    search.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        search.value = '';
        this.#search();
        byId('composer-text').focus();
        event.stopPropagation();
      }
      if (event.key === 'ArrowDown' || event.key === 'Enter') {
        const first = this.list.querySelector('a');
        if (event.key === 'Enter') first?.click();
        else first?.focus();
        event.preventDefault();
      }
    });
    this.list.addEventListener('keydown', (event) => {
      if (!['ArrowDown', 'ArrowUp'].includes(event.key) || !event.target.matches('a')) return;
      const links = [...this.list.querySelectorAll('a')];
      const next = links[links.indexOf(event.target) + (event.key === 'ArrowDown' ? 1 : -1)];
      (next ?? (event.key === 'ArrowUp' ? search : event.target)).focus();
      event.preventDefault();
    });
    for (const name of ['list', 'opened', 'running']) events.addEventListener(name, () => this.draw());
  }

  startNew() {
    openNew();
    if (narrow.matches) showSidebar(false);
    byId('composer-text').focus();
  }

  focusSearch() {
    showSidebar(true);
    byId('search').focus();
    byId('search').select();
  }

  async #report(work) {
    try {
      this.notice('exchange', '');
      const message = await work;
      if (message) announce(message);
      if (message) this.notice('exchange', message, { passing: true });
      events.dispatchEvent(new CustomEvent('list'));
    } catch (error) {
      this.notice('exchange', error.message);
    }
  }

  async #search() {
    const query = byId('search').value.trim();
    const asked = ++this.asked;
    const found = query ? await searchConversations(query) : null;
    if (asked !== this.asked) return;
    this.found = found;
    await this.draw();
    if (found) announce(`${count(found.size, 'conversation')} found`);
  }

  async draw() {
    const drawing = this.drawing = {};
    const all = await listConversations();
    if (drawing !== this.drawing) return;
    const shown = (this.found ? all.filter(({ id }) => this.found.has(id)) : all).slice(0, kMostShown);
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const groups = new Map();
    for (const summary of shown) {
      const group = this.found ? 'Found' : groupOf(summary.updated);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(this.#row(summary));
    }
    this.list.replaceChildren(...[...groups].flatMap(([name, rows]) => [h('h2', {}, name), h('ul', {}, ...rows)]));
    if (shown.length === 0) this.list.append(h('p.none', {}, this.found ? 'Nothing found.' : 'Conversations are kept in this browser and nowhere else.'));
    if (shown.length < (this.found?.size ?? all.length)) this.list.append(h('p.none', {}, `The newest ${kMostShown}; search for older ones.`));
    if (focused) this.list.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  #row({ id, title }) {
    const name = title || 'Images';
    const current = chat.kept && id === chat.conversation.id;
    const excerpt = this.found?.get(id);
    const link = h('a', { href: `#/${id}`, 'data-key': id, title: name, onclick: () => { if (narrow.matches) showSidebar(false); } },
      h('span', { className: chat.runs.has(id) ? 'live' : '' }, name), excerpt ? h('span.excerpt', {}, excerpt) : null);
    if (current) link.setAttribute('aria-current', 'page');
    const again = async () => {
      const answer = await askName(title);
      if (answer) rename(id, answer);
    };
    const actions = h('span.row-actions', {}, iconButton('edit', `Rename ${name}`, again),
      iconButton('save', `Export ${name}`, () => this.#report(exportConversations([id]))),
      iconButton('trash', `Delete ${name}`, async () => {
        if (await confirmDelete(title)) remove(id);
      }));
    return h('li', { className: current ? 'current' : '' }, link, actions);
  }
}
