// Block Markdown: text -> [{kind, start, end, ...}], where text.slice(start, end) is the block's source. No link
// definitions and no raw HTML, so a block never depends on a later one: a stream renders finished blocks once.
// Kinds: heading {level, text}, code {language, text, closed}, quote {blocks}, list {ordered, first, loose, items:
// [{checked, blocks}]}, table {align, head, rows}, rule, paragraph {text}.
const kMaxDepth = 10;
const kFence = /^( {0,3})(`{3,}|~{3,})[ \t]*([^\n]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const kRule = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|)$/;
const kDelimiterRow = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

export function parseBlocks(text, depth = 0) {
  const lines = splitLines(text);
  const blocks = [];
  for (let i = 0; i < lines.length;) {
    if (!lines[i].text.trim()) {
      i += 1;
      continue;
    }
    const { block, next } = blockAt(lines, i, depth);
    block.start = lines[i].start;
    block.end = lines[next - 1].end;
    blocks.push(block);
    i = next;
  }
  return blocks;
}

function splitLines(text) {
  const lines = [];
  for (let start = 0; start < text.length;) {
    let end = text.indexOf('\n', start);
    if (end < 0) end = text.length;
    const stop = text[end - 1] === '\r' ? end - 1 : end;
    lines.push({ text: text.slice(start, Math.max(start, stop)), start, end: Math.min(text.length, end + 1) });
    start = end + 1;
  }
  return lines;
}

function blockAt(lines, i, depth) {
  const line = lines[i].text;
  const fence = kFence.exec(line);
  if (fence && !(fence[2][0] === '`' && fence[3].includes('`'))) return codeBlock(lines, i, fence);
  const heading = kHeading.exec(line);
  if (heading) return { block: { kind: 'heading', level: heading[1].length, text: heading[2] ?? '' }, next: i + 1 };
  if (kRule.test(line)) return { block: { kind: 'rule' }, next: i + 1 };
  if (depth < kMaxDepth) {
    if (/^ {0,3}>/.test(line)) return quote(lines, i, depth);
    if (kItem.test(line)) return list(lines, i, depth);
  }
  if (startsTable(lines, i)) return table(lines, i);
  return paragraph(lines, i, depth);
}

function codeBlock(lines, i, [, indent, mark, info]) {
  const body = [];
  let next = i + 1;
  let closed = false;
  const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}[ \\t]*$`);
  for (; next < lines.length && !closed; next += 1) {
    if (end.test(lines[next].text)) closed = true;
    else body.push(lines[next].text.replace(new RegExp(`^ {0,${indent.length}}`), ''));
  }
  const language = (info.trim().split(/\s+/)[0] ?? '').slice(0, 32);
  return { block: { kind: 'code', language, text: body.join('\n'), closed }, next };
}

function quote(lines, i, depth) {
  const inner = [];
  let next = i;
  for (; next < lines.length; next += 1) {
    const line = lines[next].text;
    if (/^ {0,3}>/.test(line)) inner.push(line.replace(/^ {0,3}> ?/, ''));
    else if (line.trim() && inner.at(-1)?.trim() && !interrupts(lines, next)) inner.push(line);  // a lazy line
    else break;
  }
  return { block: { kind: 'quote', blocks: parseBlocks(inner.join('\n'), depth + 1) }, next };
}

function list(lines, i, depth) {
  const first = kItem.exec(lines[i].text);
  const ordered = /\d/.test(first[2]);
  const family = (marker) => (/\d/.test(marker) ? marker.at(-1) : marker);
  const items = [];
  let loose = false;
  let next = i;
  while (next < lines.length) {
    const match = kItem.exec(lines[next].text);
    if (!match || family(match[2]) !== family(first[2]) || kRule.test(lines[next].text)) break;
    const width = match[1].length + match[2].length + ((match[3]?.length ?? 1) > 4 ? 1 : match[3]?.length ?? 1);
    const inner = [lines[next].text.slice(width)];
    let blank = false;
    for (next += 1; next < lines.length; next += 1) {
      const line = lines[next].text;
      const indent = /^ */.exec(line.replace(/\t/g, '    '))[0].length;
      if (!line.trim()) {
        blank = true;
        inner.push('');
      } else if (indent >= width || (indent >= 2 && !ordered)) {
        // Models often indent by two or four whatever the marker's width is.
        loose ||= blank && indent < width + 2 && !kItem.test(line.trim());
        blank = false;
        inner.push(line.replace(/\t/g, '    ').slice(Math.min(indent, width)));
      } else if (!blank && !kItem.test(line) && !interrupts(lines, next)) inner.push(line.trimStart());
      else break;
    }
    const after = blank && next < lines.length ? kItem.exec(lines[next].text) : null;
    if (after && family(after[2]) === family(first[2])) loose = true;
    const task = /^\[([ xX])\][ \t]+/.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    items.push({ checked: task ? task[1] !== ' ' : null, blocks: parseBlocks(inner.join('\n'), depth + 1) });
  }
  return { block: { kind: 'list', ordered, first: ordered ? parseInt(first[2], 10) : 1, loose, items }, next };
}

function cells(line) {
  const row = line.trim().replace(/^\|/, '').replace(/(^|[^\\])\|$/, '$1');
  const found = [''];
  let ticks = 0;
  for (let i = 0; i < row.length; i += 1) {
    if (row[i] === '\\' && row[i + 1] === '|') {
      found[found.length - 1] += '|';
      i += 1;
    } else if (row[i] === '|' && ticks % 2 === 0) found.push('');
    else {
      if (row[i] === '`' && (ticks % 2 === 1 || row.indexOf('`', i + 1) > 0)) ticks += 1;
      found[found.length - 1] += row[i];
    }
  }
  return found.map((cell) => cell.trim());
}

function startsTable(lines, i) {
  if (!lines[i].text.includes('|') || i + 1 >= lines.length) return false;
  const below = lines[i + 1].text;
  return kDelimiterRow.test(below) && below.includes('-') && cells(below).length === cells(lines[i].text).length;
}

function table(lines, i) {
  const head = cells(lines[i].text);
  const align = cells(lines[i + 1].text).map((cell) => {
    if (/^:-+:$/.test(cell)) return 'center';
    return cell.endsWith(':') ? 'right' : cell.startsWith(':') ? 'left' : '';
  });
  const rows = [];
  let next = i + 2;
  for (; next < lines.length && lines[next].text.trim() && lines[next].text.includes('|'); next += 1) {
    const row = cells(lines[next].text).slice(0, head.length);
    while (row.length < head.length) row.push('');
    rows.push(row);
  }
  return { block: { kind: 'table', align, head, rows }, next };
}

// Whether a line ends the paragraph before it.
function interrupts(lines, i) {
  const line = lines[i].text;
  const item = kItem.exec(line);
  return kFence.test(line) || kHeading.test(line) || kRule.test(line) || /^ {0,3}>/.test(line) ||
    Boolean(item && item[4] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1));
}

function paragraph(lines, i, depth) {
  const inner = [lines[i].text.trimStart()];
  let next = i + 1;
  for (; next < lines.length && lines[next].text.trim(); next += 1) {
    if ((depth < kMaxDepth && interrupts(lines, next)) || startsTable(lines, next)) break;
    inner.push(lines[next].text.trimStart());
  }
  return { block: { kind: 'paragraph', text: inner.join('\n').trimEnd() }, next };
}
