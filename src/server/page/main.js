// The page's start: every part is made once and told about the others.
import { setKey, hasKey } from './api.js';
import { chat, events, modelCard, open, openNew, refresh } from './chat.js';
import { Composer } from './composer.js';
import { askKey, showHelp } from './dialogs.js';
import { byId, h } from './dom.js';
import { startKeys } from './keys.js';
import { ParamsPanel } from './params.js';
import { Sidebar } from './sidebar.js';
import { fetchModels, notice, Watch } from './status.js';
import { openStore } from './store.js';
import { startTheme } from './theme.js';
import { Thread } from './thread.js';

startTheme();
const composer = new Composer(notice);
const thread = new Thread({ editMessage: (node) => composer.edit(node), useExample: (text) => composer.put(text) });
composer.thread = thread;
const params = new ParamsPanel();
const sidebar = new Sidebar(notice);
startKeys({ composer, thread, sidebar, params });
byId('open-help').addEventListener('click', showHelp);
if (/Mac/.test(navigator.platform)) byId('search-key').textContent = '⌘ K';

// One question for a key at a time, whoever needs it.
let asking = null;
chat.askKey = (message) => {
  asking ??= askKey(hasKey() ? message : '').then((answer) => {
    asking = null;
    if (answer) setKey(answer.key, answer.remember);
    return Boolean(answer);
  });
  return asking;
};

const watch = new Watch(() => fetchModels(watch));
chat.unreachable = () => watch.lost();

function drawTitle() {
  const title = chat.conversation.title || (chat.kept ? 'Images' : 'New conversation');
  byId('title').textContent = title;
  document.title = chat.kept ? `${title} · mini-DeepInfer` : 'mini-DeepInfer';
}

function drawModel() {
  const place = byId('model');
  if (chat.models.length > 1) {
    const select = h('select', { ariaLabel: 'Model', onchange: () => {
      chat.model = select.value;
      events.dispatchEvent(new CustomEvent('models'));
    } }, ...chat.models.map(({ id }) => h('option', { value: id, selected: id === chat.model }, id)));
    place.replaceChildren(select);
  } else place.textContent = chat.model;
  const card = modelCard();
  const context = card?.max_model_len;
  place.title = context ? `Context of ${context.toLocaleString('en-GB')} tokens` : '';
}

// The address names the conversation, so that reloading and the browser's buttons work.
const address = () => (chat.kept ? `#/${chat.conversation.id}` : '#/');
function keepAddress() {
  if (location.hash !== address() && (chat.kept || location.hash !== '')) history.pushState(null, '', address());
}
async function goToAddress() {
  const id = location.hash.replace(/^#\//, '');
  if (!id) {
    if (chat.kept) openNew();
    return;
  }
  if (!await open(id)) {
    notice('missing', 'This conversation is not kept in this browser.');
    history.replaceState(null, '', '#/');
    openNew();
  }
}
addEventListener('hashchange', goToAddress);
addEventListener('popstate', goToAddress);
events.addEventListener('opened', () => {
  keepAddress();
  drawTitle();
});
events.addEventListener('turns', () => {
  keepAddress();
  drawTitle();
});
events.addEventListener('list', drawTitle);
events.addEventListener('models', drawModel);

await openStore({ problem: (kind, text) => notice(kind, text), changed: ({ kind, id }) => {
  events.dispatchEvent(new CustomEvent('list'));
  if (kind === 'saved') refresh(id);
} });
await goToAddress();
if (!chat.kept) events.dispatchEvent(new CustomEvent('opened'));
composer.focus();
document.documentElement.dataset.ready = 'yes';
watch.look();
fetchModels(watch);
