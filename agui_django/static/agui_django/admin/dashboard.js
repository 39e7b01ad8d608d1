// Each panel loads by itself: a slow one keeps no other waiting, one that fails says so.

async function load(place) {
  const section = place.closest("section");
  try {
    const answer = await fetch(place.dataset.aguiPanel);
    if (!answer.ok || answer.redirected) throw new Error(`${answer.status}`);
    place.innerHTML = await answer.text(); // made by the server, every text in it escaped
  } catch {
    const said = document.createElement("p");
    said.setAttribute("role", "alert");
    said.textContent = place.dataset.failed;
    place.replaceChildren(said);
  }
  section?.setAttribute("aria-busy", "false");
}

for (const place of document.querySelectorAll("[data-agui-panel]")) load(place);
