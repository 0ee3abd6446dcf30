#!/usr/bin/env bash
# autocannon 9.0.0: a request whose connection the server closes without an answer is no error, no
# timeout, no reset and no answer. It only counts as sent.
#
# A server that runs out of memory, restarts or sheds load closes connections, and a load test has
# to show that. autocannon connects again and sends the next request. It prints the number of
# requests sent and a line of errors if there are any: here 30 requests and no errors, although
# every third request is lost. The lost ones are in no percentile of the latency, either. A
# connection that is reset does count as an error, so the way in which the server's kernel ends a
# connection decides whether a loss is seen. An answer that breaks off counts as little as none.
#
# A server that does not answer every third request; 30 requests by one connection. Seen:
#   says 503: sent 30, 2xx 20, non-2xx 10, errors 0, timeouts 0, resets 0, prints no errors
#   closes: sent 30, 2xx 20, non-2xx 0, errors 0, timeouts 0, resets 0, prints no errors
#   closes within an answer: sent 30, 2xx 20, non-2xx 0, errors 0, timeouts 0, resets 0,
#     prints no errors
#   resets: sent 30, 2xx 20, non-2xx 0, errors 10, timeouts 0, resets 0, prints errors
# Expected: 10 errors from the second line on. Exits with an error if this changes. Needs Node.js 18
# or newer with npm instead of Python.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix "$folder" autocannon@9.0.0 >"$folder/log"
cat >"$folder/run.js" <<'JS'
const assert = require("node:assert");
const net = require("node:net");
const autocannon = require("autocannon");

const ANSWER = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const REFUSAL = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
const CASES = {
  "says 503": (socket) => socket.write(REFUSAL),
  closes: (socket) => socket.end(),
  "closes within an answer": (socket) => socket.end(ANSWER.replace("h: 2", "h: 20")),
  resets: (socket) => socket.resetAndDestroy(),
};

async function measure(refuse) {
  let requests = 0;
  const server = net.createServer((socket) => {
    let received = "";
    socket.on("error", () => {}); // of a client that has gone
    socket.on("data", (data) => {
      received += data;
      if (!received.endsWith("\r\n\r\n")) return;
      received = "";
      requests += 1;
      if (requests % 3) socket.write(ANSWER);
      else refuse(socket);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const result = await autocannon({ url, connections: 1, amount: 30, timeout: 60 });
  server.close();
  assert.strictEqual(requests, 30);
  return result;
}

(async () => {
  for (const [name, refuse] of Object.entries(CASES)) {
    const result = await measure(refuse);
    const prints = /errors/.test(autocannon.printResult(result)) ? "errors" : "no errors";
    const { errors, timeouts, resets, non2xx } = result;
    console.log(
      `${name}: sent ${result.requests.sent}, 2xx ${result["2xx"]}, non-2xx ${non2xx}, ` +
        `errors ${errors}, timeouts ${timeouts}, resets ${resets}, prints ${prints}`,
    );
    const found = [result.requests.sent, result["2xx"], non2xx, errors, timeouts, resets];
    const expected = [30, 20, name === "says 503" ? 10 : 0, name === "resets" ? 10 : 0, 0, 0];
    assert.deepStrictEqual(found, expected, "this has changed");
    assert.strictEqual(prints === "errors", name === "resets", "this has changed");
  }
  process.exit(0);
})();
JS
node "$folder/run.js"
