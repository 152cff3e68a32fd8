// What the files beside this one use; they are run in the page, one function body after this one (test_logic.py).
const cases = {};
const test = (name, body) => { cases[name] = body; };
const show = (value) => JSON.stringify(value);
function equal(found, expected, what = '') {
  if (show(found) !== show(expected)) throw new Error(`${what}\nexpected ${show(expected)}\nfound    ${show(found)}`);
}
function ok(condition, what) {
  if (!condition) throw new Error(what);
}
function throws(work, words) {
  let message = null;
  try {
    work();
  } catch (error) {
    message = error.message;
  }
  ok(message !== null && message.includes(words), `expected an error with "${words}", found ${show(message)}`);
}
async function runAll() {
  const results = {};
  for (const [name, body] of Object.entries(cases)) {
    try {
      await body();
      results[name] = null;
    } catch (error) {
      results[name] = String(error.stack ?? error);
    }
  }
  return results;
}
