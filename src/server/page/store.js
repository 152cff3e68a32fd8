// Conversations and images in IndexedDB; in memory alone where the browser refuses it. Nothing here ever throws for a
// full disk: `onproblem` is told, once per kind, and the page goes on.
import { mergeConversations, searchText } from './tree.js';

const kName = 'mdi-chat';
let database = null;
const memory = { conversations: new Map(), images: new Map(), summaries: new Map() };
let onproblem = () => {};
const channel = 'BroadcastChannel' in globalThis ? new BroadcastChannel(kName) : null;

export async function openStore({ problem, changed }) {
  onproblem = problem;
  if (channel) channel.onmessage = ({ data }) => changed(data);
  try {
    database = await new Promise((resolve, reject) => {
      const request = indexedDB.open(kName, 1);
      request.onupgradeneeded = () => {
        for (const store of ['conversations', 'summaries', 'images']) request.result.createObjectStore(store, { keyPath: 'id' });
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
      request.onblocked = () => reject(new Error('another tab holds an older version open'));
    });
    database.onversionchange = () => database.close();
  } catch (error) {
    problem('memory', `This browser keeps nothing for this page (${error.message}): conversations are lost when it closes. Export what you need.`);
  }
}

// Runs `work(stores)` in one transaction; resolves with what its request gave when all is on the disk.
function transact(names, mode, work) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(names, mode);
    let request;
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = () => reject(transaction.error ?? new Error('the browser ended the transaction'));
    transaction.onerror = (event) => event.preventDefault();
    request = work(...names.map((name) => transaction.objectStore(name)));
  });
}

function failed(error, what) {
  if (error.name === 'QuotaExceededError') {
    onproblem('quota', `The browser's storage for this page is full, so ${what} is not kept. Delete or export conversations to make room.`);
  } else onproblem('store', `The browser could not keep ${what}: ${error.message}`);
}

const summaryOf = ({ id, title, created, updated }) => ({ id, title, created, updated });

// Keeps a conversation; what another tab added to it meanwhile is kept, too. Gives false if it could not.
export async function saveConversation(conversation) {
  const plain = structuredClone(conversation);
  memory.summaries.set(plain.id, summaryOf(plain));
  if (!database) {
    memory.conversations.set(plain.id, plain);
    return true;
  }
  try {
    await transact(['conversations', 'summaries'], 'readwrite', (conversations, summaries) => {
      const before = conversations.get(plain.id);
      before.onsuccess = () => {
        const merged = mergeConversations(plain, before.result);
        conversations.put(merged);
        summaries.put(summaryOf(merged));
      };
      return before;
    });
    channel?.postMessage({ kind: 'saved', id: plain.id });
    return true;
  } catch (error) {
    memory.conversations.set(plain.id, plain);
    failed(error, 'this conversation');
    return false;
  }
}

export async function loadConversation(id) {
  const kept = database ? await transact(['conversations'], 'readonly', (store) => store.get(id)) : undefined;
  return kept ?? memory.conversations.get(id);
}

// Newest first: [{id, title, created, updated}].
export async function listConversations() {
  const kept = database ? await transact(['summaries'], 'readonly', (store) => store.getAll()) : [];
  const all = new Map(kept.map((summary) => [summary.id, summary]));
  for (const [id, conversation] of memory.conversations) if (!all.has(id)) all.set(id, summaryOf(conversation));
  return [...all.values()].sort((a, b) => b.updated - a.updated);
}

export async function deleteConversation(id) {
  const conversation = await loadConversation(id);
  memory.conversations.delete(id);
  memory.summaries.delete(id);
  const images = Object.values(conversation?.nodes ?? {}).flatMap((node) => node.images ?? []);
  if (database) {
    const shared = await imagesInUse(id);
    await transact(['conversations', 'summaries', 'images'], 'readwrite', (conversations, summaries, pictures) => {
      conversations.delete(id);
      for (const image of images) if (!shared.has(image)) pictures.delete(image);
      return summaries.delete(id);
    });
  }
  channel?.postMessage({ kind: 'deleted', id });
}

async function eachConversation(visit) {
  const seen = new Set();
  if (database) {
    await transact(['conversations'], 'readonly', (store) => {
      const cursor = store.openCursor();
      cursor.onsuccess = () => {
        if (!cursor.result) return;
        seen.add(cursor.result.value.id);
        visit(cursor.result.value);
        cursor.result.continue();
      };
      return undefined;
    });
  }
  for (const [id, conversation] of memory.conversations) if (!seen.has(id)) visit(conversation);
}

async function imagesInUse(except) {
  const used = new Set();
  await eachConversation((conversation) => {
    if (conversation.id === except) return;
    for (const node of Object.values(conversation.nodes)) for (const image of node.images ?? []) used.add(image);
  });
  return used;
}

// Conversations with all words of `query` in them: {id: a piece of text around the first hit outside the title}.
export async function searchConversations(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = new Map();
  await eachConversation((conversation) => {
    const text = searchText(conversation);
    const lower = text.toLowerCase();
    if (!words.every((word) => lower.includes(word))) return;
    const at = lower.indexOf(words[0], conversation.title.length + 1);
    const from = Math.max(0, at - 24);
    found.set(conversation.id, at < 0 ? '' : `${from > 0 ? '…' : ''}${text.slice(from, at + 72).replace(/[*_`#|>\s]+/g, ' ').trim()}…`);
  });
  return found;
}

export async function allConversations() {
  const all = [];
  await eachConversation((conversation) => all.push(conversation));
  return all;
}

// image {id, name, type, width, height, url: data URL}
export async function saveImage(image) {
  memory.images.set(image.id, image);
  if (!database) return;
  try {
    await transact(['images'], 'readwrite', (store) => store.put(image));
  } catch (error) {
    failed(error, 'this image');
  }
}

export async function loadImage(id) {
  if (memory.images.has(id)) return memory.images.get(id);
  return database ? transact(['images'], 'readonly', (store) => store.get(id)) : undefined;
}
