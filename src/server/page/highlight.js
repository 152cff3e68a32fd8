// Colours for code: comments, strings, numbers and common words, in any language near C, Python, shell or SQL. It
// reads no grammar; what it does not know stays plain. The text of the element is unchanged.
const kWords = new Set(('abstract and as assert async await auto bool boolean break case catch char class const constexpr ' +
  'continue def default defer del delete do double elif else end enum except export extends extern false final finally float ' +
  'fn for from func function global go if impl implements import in include inline instanceof int interface is lambda let ' +
  'local long loop match mod module mut namespace new nil none not null nullptr or package pass private protected pub public ' +
  'raise return self short signed sizeof static string struct super switch template then this throw trait true try type ' +
  'typedef typename union unless unsigned until use using var virtual void volatile where while with yield').split(' '));
const kSql = new Set(('add alter and as asc between by case create delete desc distinct drop else end exists from group having in ' +
  'index inner insert into is join key left like limit not null on or order primary references right select set table then ' +
  'union unique update values view when where').split(' '));
const kHash = new Set(['python', 'py', 'sh', 'bash', 'shell', 'zsh', 'ruby', 'rb', 'perl', 'yaml', 'yml', 'toml', 'ini', 'r', 'make',
  'makefile', 'dockerfile', 'cmake', 'nginx', 'conf']);
const kSlash = new Set(['c', 'cpp', 'c++', 'cc', 'h', 'hpp', 'cuda', 'cu', 'java', 'js', 'javascript', 'jsx', 'mjs', 'ts', 'typescript',
  'tsx', 'go', 'golang', 'rust', 'rs', 'cs', 'csharp', 'swift', 'kotlin', 'kt', 'scala', 'php', 'css', 'scss', 'dart', 'zig', 'json']);
const kDash = new Set(['sql', 'postgres', 'postgresql', 'mysql', 'sqlite', 'lua', 'haskell', 'hs']);
const kMaxLength = 60000;

function pattern(language) {
  const comments = [];
  if (kSlash.has(language)) comments.push('\\/\\/[^\\n]*', '\\/\\*[^]*?\\*\\/');
  if (kHash.has(language)) comments.push('(?<![^\\s])#[^\\n]*');
  if (kDash.has(language)) comments.push('--[^\\n]*');
  if (comments.length === 0) return null;
  const triple = kHash.has(language) ? '"""[^]*?"""|\'\'\'[^]*?\'\'\'|' : '';
  return new RegExp(`(${comments.join('|')})|(${triple}"(?:\\\\.|[^"\\\\\\n])*"|'(?:\\\\.|[^'\\\\\\n])*'|\`(?:\\\\.|[^\`\\\\])*\`)` +
    '|(?<![\\w.])(\\d[\\w.]*)|([A-Za-z_]\\w*)', 'g');
}

export function highlight(code, name) {
  const language = name.toLowerCase();
  const text = code.textContent;
  const words = pattern(language);
  if (!words || text.length > kMaxLength) return;
  const sql = kDash.has(language) && language !== 'lua' && !language.startsWith('h');
  const pieces = [];
  let done = 0;
  for (const match of text.matchAll(words)) {
    const [all, comment, string, digits, word] = match;
    const known = word && (sql ? kSql.has(word.toLowerCase()) : kWords.has(word) || ['None', 'True', 'False'].includes(word));
    const kind = comment ? 'comment' : string ? 'string' : digits ? 'number' : known ? 'word' : null;
    if (!kind) continue;
    if (match.index > done) pieces.push(text.slice(done, match.index));
    const span = document.createElement('span');
    span.className = `code-${kind}`;
    span.textContent = all;
    pieces.push(span);
    done = match.index + all.length;
  }
  if (pieces.length > 0) code.replaceChildren(...pieces, text.slice(done));
}
