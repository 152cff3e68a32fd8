// The server: requests with the key, errors in its own words, and the stream of an answer.
import { EventParser } from './sse.js';

const kKey = 'mdi-api-key';

export class ApiError extends Error {
  // status 0: the server was not reached. retryAfter in seconds, where the server named it.
  constructor(message, { status = 0, param = null, code = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code, retryAfter });
  }
}

function storages() {
  const list = [];
  for (const name of ['sessionStorage', 'localStorage']) {
    try {
      list.push(window[name]);
    } catch {
      // The browser refuses it: the key lives as long as this page.
    }
  }
  return list;
}

let key = storages().map((storage) => storage.getItem(kKey)).find(Boolean) ?? '';

export const hasKey = () => key !== '';

// Keeps the key for this tab, or with `remember` for this browser. Empty: forgets it.
export function setKey(value, remember) {
  key = value;
  const [session, local] = storages();
  try {
    session?.removeItem(kKey);
    local?.removeItem(kKey);
    if (value) (remember ? local : session)?.setItem(kKey, value);
  } catch {
    // A full or refused storage: as above.
  }
}

function failure(response, text) {
  let error = null;
  try {
    error = JSON.parse(text).error;
  } catch {
    // Not the API's shape: a proxy's page, perhaps.
  }
  const wait = Number(response.headers.get('retry-after'));
  const known = typeof error === 'string' ? { message: error } : error;
  return new ApiError(known?.message || `The server answered ${response.status} ${response.statusText}`.trim(), {
    status: response.status, param: known?.param ?? null, code: known?.code ?? null, retryAfter: wait > 0 ? wait : null });
}

async function send(path, { body, signal }) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, { method: body === undefined ? 'GET' : 'POST', headers, signal, cache: 'no-store', credentials: 'omit',
      redirect: 'error', body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server cannot be reached.');
  }
  if (!response.ok) throw failure(response, await response.text().catch(() => ''));
  return response;
}

export async function getJson(path, signal = AbortSignal.timeout(10000)) {
  try {
    return await (await send(path, { signal })).json();
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw new ApiError(error.name === 'SyntaxError' ? `What ${path} answered is not JSON.` : 'The server does not answer.');
  }
}

// Streams an answer: `each(chunk)` for every chunk of it. Ends at [DONE]; throws ApiError for an error of the server, in
// the middle too, and AbortError when `signal` stops it.
export async function streamChat(body, signal, each) {
  const response = await send('/v1/chat/completions', { body, signal });
  const reader = response.body.getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      for (const { data } of done ? parser.end() : parser.push(value)) {
        if (data === '[DONE]') return;
        const chunk = JSON.parse(data);
        if (chunk.error) {
          throw new ApiError(chunk.error.message ?? 'The server ended the answer with an error.',
            { status: chunk.error.status ?? 500, param: chunk.error.param ?? null, code: chunk.error.code ?? null });
        }
        each(chunk);
      }
      if (done) throw new ApiError('The connection ended before the answer did.');
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ApiError) throw error;
    throw new ApiError(error.name === 'SyntaxError' ? 'The server sent something that is not JSON.' : 'The connection was lost in the middle of the answer.');
  } finally {
    reader.cancel().catch(() => {});
  }
}
