// What the page is about: the open conversation, the answers being written, and what a person can do with them. The
// views listen: 'opened' (another conversation), 'turns' (its turns changed), 'answer' (a node grew), 'running',
// 'list' (names or order changed), 'models', 'params'.
import { addChunk, emptyAnswer } from './answer.js';
import { ApiError, getJson, streamChat } from './api.js';
import { kDefaults, messagesOf, settingsOf, wholeCalls } from './request.js';
import { deleteConversation, loadConversation, loadImage, saveConversation } from './store.js';
import { addNode, forkAt, newConversation, pathTo, selectNode, selectSibling, selectedPath } from './tree.js';

const kParams = 'mdi-params';
const kSaveEvery = 1500;  // ms, while an answer is written

export const events = new EventTarget();
const tell = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));

export const chat = {
  conversation: newConversation(rememberedParams()),
  kept: false,  // whether it is in the store: an empty one is not
  models: [],   // as /v1/models lists them
  model: '',
  runs: new Map(),  // conversation id -> {node, controller, done}
  askKey: async () => false,    // set by the page: asks for a key; true when there is a new one
  unreachable: () => {},        // set by the page: the server was not reached
};

function rememberedParams() {
  try {
    return { ...kDefaults, ...JSON.parse(localStorage.getItem(kParams) ?? '{}') };
  } catch {
    return { ...kDefaults };
  }
}

export function setParams(change) {
  Object.assign(chat.conversation.params, change);
  try {
    localStorage.setItem(kParams, JSON.stringify(chat.conversation.params));
  } catch {
    // They last as long as the conversation.
  }
  if (chat.kept) save(chat.conversation);
  tell('params');
}

export async function loadModels() {
  for (;;) {
    try {
      chat.models = (await getJson('/v1/models')).data ?? [];
      if (!chat.models.some((model) => model.id === chat.model)) chat.model = chat.models[0]?.id ?? '';
      tell('models');
      return;
    } catch (error) {
      if (error.status !== 401 || !await chat.askKey(error.message)) throw error;
    }
  }
}

export const modelCard = () => chat.models.find((model) => model.id === chat.model);

// Whether the model says that it takes text alone.
export const isBlind = () => modelCard()?.input_modalities?.includes('image') === false;

let lastSave = Promise.resolve();
async function save(conversation) {
  if (conversation === chat.conversation) chat.kept = true;
  lastSave = lastSave.then(() => saveConversation(conversation));
  if (await lastSave) tell('list');
}

export function openNew() {
  chat.conversation = newConversation(rememberedParams());
  chat.kept = false;
  tell('opened');
}

// False: there is none of this id.
export async function open(id) {
  if (chat.kept && chat.conversation.id === id) return true;
  const running = chat.runs.get(id)?.conversation;
  const conversation = running ?? await loadConversation(id);
  if (!conversation) return false;
  if (!running) {
    for (const node of Object.values(conversation.nodes)) {
      if (node.state === 'waiting' || node.state === 'streaming') node.state = 'interrupted';
    }
  }
  conversation.params = { ...kDefaults, ...conversation.params };
  chat.conversation = conversation;
  chat.kept = true;
  tell('opened');
  return true;
}

// Another tab has changed the open conversation.
export async function refresh(id) {
  if (id !== chat.conversation.id || chat.runs.has(id)) return;
  const conversation = await loadConversation(id);
  if (!conversation || id !== chat.conversation.id || chat.runs.has(id)) return;
  // What another tab is writing at this moment is shown as it was last kept.
  Object.assign(chat.conversation, { title: conversation.title, named: conversation.named, updated: conversation.updated,
    nodes: conversation.nodes });
  tell('turns');
}

export async function remove(id) {
  stop(id);
  await chat.runs.get(id)?.done;
  await lastSave;
  await deleteConversation(id);
  if (id === chat.conversation.id) openNew();
  tell('list');
}

export async function rename(id, title) {
  const conversation = id === chat.conversation.id ? chat.conversation : chat.runs.get(id)?.conversation ?? await loadConversation(id);
  if (!conversation) return;
  conversation.title = title;
  conversation.named = true;
  await save(conversation);
  if (conversation === chat.conversation) tell('turns');
}

export const path = () => selectedPath(chat.conversation);
export const isRunning = (id = chat.conversation.id) => chat.runs.has(id);
export const lastNode = () => path().at(-1)?.node ?? null;

// Calls of the last answer that have no result yet.
export function openCalls() {
  const node = lastNode();
  return node?.role === 'assistant' && !isRunning() ? wholeCalls(node) : [];
}

// A person's message below `parent` (undefined: the end), and the answer to it. results: of open tool calls.
export function send(text, images, { parent, results } = {}) {
  let below = parent === undefined ? lastNode()?.id ?? null : parent;
  if (results?.length) below = addNode(chat.conversation, below, { role: 'tool', results }).id;
  if (text || images.length > 0) below = addNode(chat.conversation, below, { role: 'user', text, images: images.map((image) => image.id) }).id;
  return generate(chat.conversation, below);
}

// Another answer in the place of this one; the old one stays as a branch.
export function retry(id) {
  const node = chat.conversation.nodes[id];
  return generate(chat.conversation, node.role === 'assistant' ? node.parent : node.id);
}

export function stop(id = chat.conversation.id) {
  chat.runs.get(id)?.controller.abort();
}

export function switchBranch(id, step) {
  if (!selectSibling(chat.conversation, id, step)) return false;
  save(chat.conversation);
  tell('turns');
  return true;
}

export function fork(id) {
  chat.conversation = forkAt(chat.conversation, id);
  save(chat.conversation);
  tell('opened');
}

async function imagesOf(nodes) {
  const images = new Map();
  for (const id of nodes.flatMap((node) => node.images ?? [])) {
    const image = await loadImage(id);
    if (!image) throw new Error('An image of this conversation is not kept in this browser any more. Fork before it, or edit its message.');
    images.set(id, image.url);
  }
  return images;
}

async function generate(conversation, parent) {
  stop(conversation.id);
  await chat.runs.get(conversation.id)?.done;
  const node = addNode(conversation, parent, emptyAnswer(chat.model));
  selectNode(conversation, node.id);
  const controller = new AbortController();
  const run = { conversation, node, controller, done: null };
  chat.runs.set(conversation.id, run);
  save(conversation);
  if (conversation === chat.conversation) tell('turns');
  tell('running', { conversation, node });
  run.done = write(run).finally(() => {
    node.timing.end = performance.now();
    chat.runs.delete(conversation.id);
    conversation.updated = Date.now();
    save(conversation);
    tell('answer', { conversation, node });
    if (conversation === chat.conversation) tell('turns');
    tell('running', { conversation, node });
  });
  return run.done;
}

async function write({ conversation, node, controller }) {
  let saved = performance.now();
  const grew = (chunk) => {
    const now = performance.now();
    addChunk(node, chunk, now);
    tell('answer', { conversation, node });
    if (now - saved > kSaveEvery) {
      saved = now;
      save(conversation);
    }
  };
  try {
    const before = pathTo(conversation, node.parent);
    const images = await imagesOf(before);
    node.settings = settingsOf(conversation.params);
    const body = { model: chat.model, messages: messagesOf(before, conversation.params.system, (id) => images.get(id)), stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true }, ...node.settings };
    if (!body.model) {
      await loadModels();
      body.model = chat.model;
    }
    for (let again = true; again;) {
      again = false;
      try {
        node.timing.sent = performance.now();
        await streamChat(body, controller.signal, grew);
      } catch (error) {
        if (error.status !== 401 || !await chat.askKey(error.message)) throw error;
        again = true;
      }
    }
    node.state = 'done';
  } catch (error) {
    if (error.name === 'AbortError') node.state = 'stopped';
    else {
      node.state = 'error';
      node.error = { message: error.message, status: error.status ?? null, param: error.param ?? null, code: error.code ?? null, retryAfter: error.retryAfter ?? null };
      if (error instanceof ApiError && error.status === 0) chat.unreachable();
    }
  }
}
