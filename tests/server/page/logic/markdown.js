const { parseBlocks } = await import('/page/markdown.js');
const { parseInline, plainText } = await import('/page/inline.js');
const { MarkdownView, renderBlock } = await import('/page/render.js');

const html = (text) => {
  const element = document.createElement('div');
  element.append(...parseBlocks(text).map(renderBlock));
  for (const caption of element.querySelectorAll('figcaption')) caption.remove();
  return element.innerHTML.replace(/ (tabindex|target|rel|title|role|aria-label|class)="[^"]*"/g, '').replace(/ class=""/g, '');
};

const kWhole = `# A heading with \`code\`

A paragraph, **strong *and* emphasised**, with a [link](https://a.example/b_(c) "t") and
a second line.  
A hard break, ~~gone~~, snake_case_name, 2 * 3 * 4.

- one
- two
  - nested
    more of nested

  still two
- [x] done

1. first
2. second
   \`\`\`c++
   int x = 1;  // indented

   return x;
   \`\`\`

> quoted
lazily
> - with a list

| a | b |
|:--|--:|
| \`x|y\` | 1 |
| z |

\`\`\`py
# not a heading
\`\`\`
***
The end`;

test('blocks', () => {
  equal(html('## T ##\n\ntext\nmore'), '<h3>T</h3><p>text\nmore</p>');
  equal(html('- a\n- b'), '<ul><li>a</li><li>b</li></ul>');
  equal(html('3. a\n4. b'), '<ol start="3"><li>a</li><li>b</li></ol>');
  equal(html('- a\n\n  b\n- c'), '<ul><li><p>a</p><p>b</p></li><li><p>c</p></li></ul>');
  equal(html('* a\n    * b\n        * c'), '<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li></ul>');
  equal(html('1. a\n   - b\n2. c'), '<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>');
  equal(html('> a\n> > b'), '<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>');
  equal(html('|a|b|\n|-|:-:|\n|1|2|3|'), '<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>');
  equal(html('a | b\nno table'), '<p>a | b\nno table</p>');
  equal(html('```\n<b>&amp;\n```'), '<figure><pre><code>&lt;b&gt;&amp;amp;</code></pre></figure>');
  equal(html('~~~~\n```\n~~~\n~~~~'), '<figure><pre><code>```\n~~~</code></pre></figure>');
  equal(html('a\n***\nb'), '<p>a</p><hr><p>b</p>');
  equal(html('- [ ] a\n- [x] b'), '<ul><li><input type="checkbox" disabled=""> a</li><li><input type="checkbox" disabled=""> b</li></ul>');
  equal(html('The year\n1986. It was'), '<p>The year\n1986. It was</p>');
});

test('inline', () => {
  const inline = (text) => html(text).replace(/^<p>|<\/p>$/g, '');
  equal(inline('*a* _b_ **c** __d__ ***e*** ~~f~~'), '<em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <em><strong>e</strong></em> <s>f</s>');
  equal(inline('a_b_c 2*3*4 * x *'), 'a_b_c 2<em>3</em>4 * x *');
  equal(inline('**a *b** c*'), '<em><em>a <em>b</em></em> c</em>');  // as CommonMark has it
  equal(inline('`` a`b `` `unclosed'), '<code>a`b</code> `unclosed');
  equal(inline('\\*a\\* &lt;b&gt; &copy;'), '*a* &lt;b&gt; &amp;copy;');
  equal(inline('[a *b*](https://x.y)'), '<a href="https://x.y">a <em>b</em></a>');
  equal(inline('see https://x.y/z_(q), or <https://x.y>.'), 'see <a href="https://x.y/z_(q)">https://x.y/z_(q)</a>, or <a href="https://x.y">https://x.y</a>.');
  equal(inline('![alt](https://x.y/p.png)'), '<a href="https://x.y/p.png">alt (image)</a>');
  equal(inline('a  \nb'), 'a<br>b');
});

test('nothing in a text becomes markup, code or a request', () => {
  const hostile = ['<script>window.hit = 1</script>', '<img src=x onerror="window.hit = 1">', '[a](javascript:window.hit=1)',
    '[a](JaVaScRiPt:window.hit=1)', '[a](\tjavascript:x)', '[a](data:text/html,<script>1</script>)', '[a](vbscript:x)', '<javascript:x>',
    '![a](https://example.com/pixel.png)', '<svg onload=alert(1)>', '[a](https://x" onclick="window.hit=1)', '```<img src=x onerror=window.hit=1>\n<script>\n```',
    '| <img src=x onerror=window.hit=1> |\n|--|\n| <iframe src=//x> |', '- <a href="javascript:x">y</a>', '[a](file:///etc/passwd)', '&#106;avascript:', '[<b>](https://x.y)'];
  const element = document.createElement('div');
  document.body.append(element);
  for (const text of hostile) {
    new MarkdownView(element).set(text, true);
    equal(element.querySelectorAll('script, img, iframe, svg:not(.icon), b, object, embed, style').length, 0, text);
    for (const each of element.querySelectorAll('*')) {
      for (const { name } of each.attributes) ok(!name.startsWith('on'), `${text}: ${name}`);
    }
    for (const link of element.querySelectorAll('a')) {
      ok(/^https?:\/\/|^mailto:/.test(link.getAttribute('href')), `${text}: ${link.href}`);
      ok(link.relList.contains('noopener') && link.target === '_blank', text);
    }
    ok(element.textContent.length > 0, text);
  }
  element.remove();
  equal(window.hit, undefined);
});

test('a text that grows by one character at a time ends as it would in one piece', () => {
  const grown = document.createElement('div');
  const view = new MarkdownView(grown);
  for (let length = 0; length <= kWhole.length; length += 1) {
    view.set(kWhole.slice(0, length), false);
    if (length % 7 !== 0) continue;
    const whole = document.createElement('div');
    new MarkdownView(whole).set(kWhole.slice(0, length), false);
    equal(grown.innerHTML, whole.innerHTML, `after ${length} characters`);
  }
  view.set(kWhole, true);
  const whole = document.createElement('div');
  new MarkdownView(whole).set(kWhole, true);
  equal(grown.innerHTML, whole.innerHTML);
  equal(grown.querySelectorAll('h3, p, ul, ol, blockquote, table, figure, hr').length, 19);
});

test('finished blocks are left alone', () => {
  const element = document.createElement('div');
  const view = new MarkdownView(element);
  view.set('# One\n\ntwo\n\nthr', false);
  const [first, second] = element.children;
  view.set('# One\n\ntwo\n\nthree\n\n```\ncode', false);
  ok(element.children[0] === first && element.children[1] === second, 'drawn again');
  const code = element.querySelector('pre code');
  view.set('# One\n\ntwo\n\nthree\n\n```\ncode that grows', false);
  ok(element.querySelector('pre code') === code && code.textContent === 'code that grows', 'code drawn again');
});

test('hostile lengths and depths end in time', () => {
  const before = performance.now();
  for (const text of ['>'.repeat(5000), '- '.repeat(3000), '*'.repeat(20000), '*a '.repeat(8000), '['.repeat(20000), '`'.repeat(9999) + ' a', '![['.repeat(5000),
    '_a*b'.repeat(5000), '|'.repeat(9000) + '\n' + '|-'.repeat(9000), '<https://'.repeat(3000), '\\'.repeat(9999), 'https://a('.repeat(2000), '`a``b'.repeat(3000)]) {
    parseBlocks(text).map(renderBlock);
  }
  const took = performance.now() - before;
  ok(took < 6000, `${took} ms`);
});

test('plain text of inline markup', () => equal(plainText(parseInline('**a** `b` [c](https://x.y)')), 'a b c'));
