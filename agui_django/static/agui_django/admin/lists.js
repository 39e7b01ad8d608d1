// Keeps the running rows of a list up to date: one small question every three seconds, only while the page is seen.

const EVERY = 3000;

function rows() {
  const found = document.querySelectorAll("[data-agui-run]");
  return [...found].filter((row) => ["queued", "pending", "running"].includes(row.dataset.status));
}

async function look() {
  const open = rows();
  if (open.length && !document.hidden) {
    const query = new URLSearchParams(open.map((row) => ["run", row.dataset.aguiRun]));
    const answer = await fetch(`${location.pathname}status/?${query}`, { headers: { Accept: "application/json" } });
    if (!answer.ok || answer.redirected) return;
    const known = await answer.json();
    for (const row of open) {
      const now = known[row.dataset.aguiRun];
      if (!now || now.status === row.dataset.status) continue;
      row.dataset.status = now.status;
      row.innerHTML = now.badge; // made by the server, of a status only
      const time = row.closest("tr")?.querySelector(".field-duration");
      if (time) time.textContent = now.time;
    }
  }
  if (rows().length) setTimeout(() => look().catch(() => {}), EVERY);
}

document.addEventListener("DOMContentLoaded", () => {
  if (rows().length) setTimeout(() => look().catch(() => {}), EVERY);
});
