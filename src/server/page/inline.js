// Inline Markdown: text -> [{kind, ...}] with kinds text, code, strong, emphasis, strike, link, image, break.
// Raw HTML has no meaning here: it stays text. Links keep only http, https and mailto.
const kMaxDepth = 12;
const kPunctuation = /[!-/:-@[-`{-~\u2010-\u2027\u3001-\u3003\u300c-\u300f]/;
const kEntities = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', '#39': "'" };

// The address if a page may link to it, else null.
export function safeAddress(address) {
  if (/[\u0000-\u0020\u007f]/.test(address)) return null;
  return /^(https?:\/\/[^/]|mailto:.)/i.test(address) ? address : null;
}

export function parseInline(text, depth = 0) {
  if (depth > kMaxDepth) return [{ kind: 'text', text }];
  const pieces = [];  // nodes and delimiter runs {kind: 'run', mark, count, opens, closes}
  let plain = '';
  const flush = () => {
    if (plain) pieces.push({ kind: 'text', text: plain });
    plain = '';
  };
  const put = (node) => { flush(); pieces.push(node); };
  for (let i = 0; i < text.length;) {
    const found = special(text, i, depth);
    if (!found) {
      plain += text[i];
      i += 1;
    } else {
      if (found.text !== undefined) plain += found.text;
      else {
        if (found.node.kind === 'break') plain = plain.replace(/ +$/, '');
        put(found.node);
      }
      i = found.end;
    }
  }
  flush();
  return joinTexts(pairRuns(pieces));
}

// What starts at text[i]: {end, text} for literal text, {end, node}, or null for an ordinary character.
function special(text, i, depth) {
  const c = text[i];
  switch (c) {
    case '\\':
      if (text[i + 1] === '\n') return { end: i + 2, node: { kind: 'break' } };
      return i + 1 < text.length && kPunctuation.test(text[i + 1]) ? { end: i + 2, text: text[i + 1] } : null;
    case '\n': {
      const hard = text.slice(Math.max(0, i - 2), i) === '  ';
      return hard ? { end: i + 1, node: { kind: 'break' } } : null;
    }
    case '`': return codeSpan(text, i);
    case '!':
      return text[i + 1] === '[' ? link(text, i + 1, depth, 'image') : null;
    case '[': return link(text, i, depth, 'link');
    case '<': {
      const match = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(text.slice(i, i + 2048));
      if (!match || !safeAddress(match[1])) return null;
      return { end: i + match[0].length, node: { kind: 'link', address: match[1], children: [{ kind: 'text', text: match[1] }] } };
    }
    case '&': {
      const match = /^&(amp|lt|gt|quot|apos|nbsp|#39);/.exec(text.slice(i, i + 8));
      return match ? { end: i + match[0].length, text: kEntities[match[1]] } : null;
    }
    case 'h': return bareLink(text, i);
    case '*': case '_': case '~': return run(text, i);
    default: return null;
  }
}

function codeSpan(text, i) {
  let fence = i;
  while (text[fence] === '`') fence += 1;
  const ticks = text.slice(i, fence);
  for (let at = text.indexOf(ticks, fence); at >= 0; at = text.indexOf(ticks, at)) {
    let end = at;
    while (text[end] === '`') end += 1;
    if (end - at === ticks.length) {
      let code = text.slice(fence, at).replace(/\n/g, ' ');
      if (/^ .* $/.test(code) && code.trim()) code = code.slice(1, -1);
      return { end, node: { kind: 'code', text: code } };
    }
    at = end;
  }
  return { end: fence, text: ticks };
}

function link(text, open, depth, kind) {
  const close = closing(text, open, '[', ']');
  if (close < 0 || text[close + 1] !== '(') return null;
  const end = closing(text, close + 1, '(', ')');
  if (end < 0) return null;
  const inside = text.slice(close + 2, end).trim();
  const match = /^<([^<>\n]*)>|^(\S*)/.exec(inside);
  const address = safeAddress(match[1] ?? match[2]);
  const label = text.slice(open + 1, close);
  if (!address) return null;
  if (kind === 'image') return { end: end + 1, node: { kind, address, text: label } };
  const children = parseInline(label, depth + 1).map((node) => (node.kind === 'link' ? { kind: 'text', text: plainText([node]) } : node));
  return { end: end + 1, node: { kind, address, children } };
}

// The index of the bracket that closes text[open], at most 1,024 characters on, or -1.
function closing(text, open, left, right) {
  let nested = 0;
  const limit = Math.min(text.length, open + 1024);
  for (let i = open; i < limit; i += 1) {
    if (text[i] === '\\') i += 1;
    else if (text[i] === left) nested += 1;
    else if (text[i] === right) {
      nested -= 1;
      if (nested === 0) return i;
    }
  }
  return -1;
}

function bareLink(text, i) {
  if (i > 0 && /[\w/]/.test(text[i - 1])) return null;
  const match = /^https?:\/\/[^\s<>"'`\u3000-\u303f]+/.exec(text.slice(i, i + 2048));
  if (!match) return null;
  let address = match[0].replace(/[.,;:!?*_~\]]+$/, '');
  while (address.endsWith(')') && address.split(')').length > address.split('(').length) address = address.slice(0, -1);
  if (!safeAddress(address)) return null;
  return { end: i + address.length, node: { kind: 'link', address, children: [{ kind: 'text', text: address }] } };
}

function run(text, i) {
  const mark = text[i];
  let end = i;
  while (text[end] === mark) end += 1;
  const count = end - i;
  if (mark === '~' && count !== 2) return { end, text: text.slice(i, end) };
  const before = i === 0 ? ' ' : text[i - 1];
  const after = end >= text.length ? ' ' : text[end];
  const space = /\s/;
  const left = !space.test(after) && (!kPunctuation.test(after) || space.test(before) || kPunctuation.test(before));
  const right = !space.test(before) && (!kPunctuation.test(before) || space.test(after) || kPunctuation.test(after));
  const opens = mark === '_' ? left && (!right || kPunctuation.test(before)) : left;
  const closes = mark === '_' ? right && (!left || kPunctuation.test(after)) : right;
  return { end, node: { kind: 'run', mark, count, opens, closes } };
}

// CommonMark's rule for delimiter runs: a closing run takes the nearest opening one of its mark.
function pairRuns(pieces) {
  const stack = [{ nodes: [], run: null }];
  for (const piece of pieces) {
    if (piece.kind !== 'run') {
      stack.at(-1).nodes.push(piece);
      continue;
    }
    let left = piece.count;
    while (piece.closes && left > 0) {
      let at = stack.length - 1;
      while (at > 0 && !matches(stack[at].run, piece, left)) at -= 1;
      if (at === 0) break;
      while (stack.length - 1 > at) unwind(stack);
      const { nodes, run: opener } = stack.pop();
      const used = piece.mark === '~' || (opener.count >= 2 && left >= 2) ? 2 : 1;
      opener.count -= used;
      left -= used;
      const kind = piece.mark === '~' ? 'strike' : used === 2 ? 'strong' : 'emphasis';
      const node = { kind, children: joinTexts(nodes) };
      if (opener.count > 0) stack.push({ nodes: [node], run: opener });
      else stack.at(-1).nodes.push(node);
    }
    if (left === 0) continue;
    if (piece.opens && stack.length < 64) stack.push({ nodes: [], run: { ...piece, count: left } });
    else stack.at(-1).nodes.push({ kind: 'text', text: piece.mark.repeat(left) });
  }
  while (stack.length > 1) unwind(stack);
  return stack[0].nodes;
}

function matches(opener, closer, left) {
  if (opener.mark !== closer.mark) return false;
  const either = opener.closes || closer.opens;
  return !(either && (opener.count + left) % 3 === 0 && (opener.count % 3 !== 0 || left % 3 !== 0));
}

function unwind(stack) {
  const { nodes, run: opener } = stack.pop();
  stack.at(-1).nodes.push({ kind: 'text', text: opener.mark.repeat(opener.count) }, ...nodes);
}

function joinTexts(nodes) {
  const joined = [];
  for (const node of nodes) {
    if (node.kind === 'text' && joined.at(-1)?.kind === 'text') joined[joined.length - 1] = { kind: 'text', text: joined.at(-1).text + node.text };
    else joined.push(node);
  }
  return joined;
}

export function plainText(nodes) {
  return nodes.map((node) => (node.kind === 'break' ? '\n' : node.children ? plainText(node.children) : node.text)).join('');
}
