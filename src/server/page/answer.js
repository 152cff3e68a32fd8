// What a stream's chunks make of an answer, and the numbers that are told about it. Pure: no page, no network.
//
// timing {sent, first, thinkingFrom, thinkingTo, last, end: milliseconds of one clock, pieces: chunks that carried text}

export function emptyAnswer(model) {
  return { role: 'assistant', content: '', reasoning: '', toolCalls: [], state: 'waiting', finish: null, error: null, usage: null,
    model, timing: { sent: 0, first: 0, thinkingFrom: 0, thinkingTo: 0, last: 0, end: 0, pieces: 0 } };
}

// Adds one chunk that arrived at `now`.
export function addChunk(node, chunk, now) {
  if (chunk.usage) node.usage = chunk.usage;
  if (chunk.model) node.model = chunk.model;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning_content ?? '';
  const content = delta.content ?? '';
  const calls = delta.tool_calls ?? [];
  const timing = node.timing;
  if (reasoning || content || calls.length > 0) {
    timing.first ||= now;
    timing.last = now;
    timing.pieces += 1;
    node.state = 'streaming';
  }
  if (reasoning) {
    node.reasoning += reasoning;
    timing.thinkingFrom ||= timing.first;
    timing.thinkingTo = now;
  }
  if ((content || calls.length > 0) && node.reasoning && !node.content && node.toolCalls.length === 0) timing.thinkingTo = now;
  node.content += content;
  for (const call of calls) {
    const index = call.index ?? node.toolCalls.length;
    if (!Number.isInteger(index) || index < 0 || index > 255) continue;
    while (node.toolCalls.length <= index) node.toolCalls.push({ id: '', name: '', arguments: '' });
    const known = node.toolCalls[index];
    if (call.id) known.id = call.id;
    if (call.function?.name) known.name += call.function.name;
    known.arguments += call.function?.arguments ?? '';
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

export const isThinking = (node) => node.state === 'streaming' && node.reasoning !== '' && !node.content && node.toolCalls.length === 0;

// {tokens, exact, rate (tokens a second or null), first (ms or null), thinking (ms), prompt, cached, reasoningTokens}.
// Until the usage arrives the tokens are counted by chunks: exact is false.
export function numbersOf(node, now) {
  const { timing, usage } = node;
  const tokens = usage?.completion_tokens ?? timing.pieces;
  const end = timing.last || now;
  const span = end - timing.first;
  return {
    tokens,
    exact: Boolean(usage),
    rate: timing.first && tokens > 1 && span > 0 ? ((tokens - 1) * 1000) / span : null,
    first: timing.first ? timing.first - timing.sent : null,
    thinking: timing.thinkingFrom ? (isThinking(node) ? now : timing.thinkingTo) - timing.thinkingFrom : 0,
    prompt: usage?.prompt_tokens ?? null,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
    reasoningTokens: usage?.completion_tokens_details?.reasoning_tokens ?? null,
  };
}

// Why an answer ended, where that is worth a line; else ''.
export function endNote(node) {
  if (node.state === 'stopped') return 'Stopped.';
  if (node.state === 'interrupted') return 'Interrupted: the page was closed while this was written.';
  if (node.state === 'done' && node.finish === 'length') return 'Cut off: the limit of tokens was reached.';
  if (node.state === 'done' && !node.content && node.toolCalls.length === 0) {
    return node.reasoning ? 'The answer ended after its reasoning.' : 'The answer is empty.';
  }
  return '';
}

// Arguments of a tool call for people: indented if they are JSON, as they are while they still come.
export function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text || '{}'), null, 2);
  } catch {
    return text;
  }
}
