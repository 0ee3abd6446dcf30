// k6 posts one image repeatedly, and checks the answers:
//     k6 run -u 8 -d 5s deploy/loadtest/k6.js
//     k6 run -u 8 -d 5s -e URL=http://127.0.0.1:8000 -e IMAGE=/path/to/cat.jpg deploy/loadtest/k6.js
import { check } from "k6";
import http from "k6/http";

const url = __ENV.URL || "http://127.0.0.1:8000";
const image = open(__ENV.IMAGE || "../../models/digits/samples/3_ink_on_paper.jpg", "b");
const params = { headers: { "content-type": "application/octet-stream" } };

// A failed check alone would end k6 with status 0.
export const options = { thresholds: { checks: ["rate==1"] } };

export default function () {
  const answer = http.post(`${url}/v1/classify`, image, params);
  check(answer, { classified: ({ status, body }) => status === 200 && body.includes('"predictions"') });
}
