// The API reference: Swagger UI on the OpenAPI document of this service.

const { root, csrf } = document.body.dataset;
const dark = matchMedia("(prefers-color-scheme: dark)");

function followScheme() {
  document.documentElement.classList.toggle("dark-mode", dark.matches);
}

function withToken(request) {
  if (csrf) request.headers["X-CSRF-Token"] = csrf;
  return request;
}

async function show() {
  const answer = await fetch(`${root}/openapi.json`);
  if (!answer.ok) throw new Error(answer.statusText);
  const spec = await answer.json();
  const base = new URL(`${root}/`, location).pathname;
  if (base !== "/") spec.servers = [{ url: base.slice(0, -1) }];  // the service is behind a proxy with a prefix
  SwaggerUIBundle({
    spec,
    dom_id: "#reference",
    deepLinking: true,
    defaultModelsExpandDepth: 0,
    plugins: [() => ({ wrapComponents: { InfoContainer: () => () => null } })],  // the page has its own heading
    requestInterceptor: withToken,
    showMutatedRequest: false,
    syntaxHighlight: { theme: "tomorrow-night" },
    validatorUrl: null,
  });
}

followScheme();
dark.addEventListener("change", followScheme);
show().catch(() => { document.getElementById("error").hidden = false; });
