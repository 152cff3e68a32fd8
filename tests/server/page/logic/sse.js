const { EventParser } = await import('/page/sse.js');

const kStream = ': hello\n\ndata: {"a": "é€😀"}\n\nevent: ping\r\ndata: one\r\ndata:two\r\n\r\nid: 7\ndata\n\rdata: x\r\rdata: last: of all\n\n';
const kEvents = [{ event: 'message', data: '{"a": "é€😀"}' }, { event: 'ping', data: 'one\ntwo' }, { event: 'message', data: '' },
  { event: 'message', data: 'x' }, { event: 'message', data: 'last: of all' }];

test('a stream split at every byte', () => {
  const bytes = new TextEncoder().encode(kStream);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const parser = new EventParser();
    equal([...parser.push(bytes.slice(0, cut)), ...parser.push(bytes.slice(cut)), ...parser.end()], kEvents, `cut at ${cut}`);
  }
});

test('a stream byte by byte', () => {
  const parser = new EventParser();
  const found = [];
  for (const byte of new TextEncoder().encode(kStream)) found.push(...parser.push(Uint8Array.of(byte)));
  equal(found, kEvents);
});

test('an event without its blank line is dropped', () => {
  const parser = new EventParser();
  equal([...parser.push(new TextEncoder().encode('data: whole\n\ndata: half\n')), ...parser.end()], [{ event: 'message', data: 'whole' }]);
});
