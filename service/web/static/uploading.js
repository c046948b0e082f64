// Calls the API with upload progress, and turns problems into errors.

export class Refusal extends Error {
  constructor(problem) {
    super(problem.detail);
    this.problem = problem;
  }
}

export class Stopped extends Error {}

const AWAY = { code: "", detail: "The service did not respond, or closed the connection." };
// Sends a body by POST; onProgress gets the bytes sent and the total, and signal aborts the request.
export function post(url, body, { type, token, onProgress, signal }) {
  return new Promise((resolve, reject) => {
    const call = new XMLHttpRequest();
    call.open("POST", url);
    call.setRequestHeader("Content-Type", type);
    if (token) call.setRequestHeader("X-CSRF-Token", token);
    call.upload.onprogress = (event) => onProgress?.(event.loaded, event.total);
    call.onload = () => {
      const answer = parsed(call);
      if (call.status >= 200 && call.status < 300) resolve(answer);
      else reject(new Refusal(answer));
    };
    call.onerror = () => reject(new Refusal(AWAY));
    call.onabort = () => reject(new Stopped());
    if (signal?.aborted) return reject(new Stopped());
    signal?.addEventListener("abort", () => call.abort());
    return call.send(body);
  });
}

function parsed(call) {
  try {
    return JSON.parse(call.responseText);
  } catch {
    return { code: "", detail: `The service responded with status ${call.status}.` };
  }
}
