// Brings the page to life: tables and commands at once, charts when the library that the page carries
// is unpacked.  Whatever fails leaves the still pictures.
sortable(document);
copyable(document);

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

const inflated = async (name) => {
  const stream = new Blob([bytes(document.getElementById(name).textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
};

if (document.getElementById("library")) {
  try {
    const [code, data] = await Promise.all([inflated("library"), inflated("data")]);
    const script = document.createElement("script");
    script.textContent = code; // the page's policy knows its digest, and lets nothing else run
    document.head.append(script);
    charts(document, JSON.parse(data), window.Plotly);
  } catch (error) {
    console.warn("no charts:", error);
  }
}
document.documentElement.dataset.ready = Math.round(performance.now()); // ms since it was opened
