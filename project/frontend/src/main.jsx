// The shell: which page and which thread, from the address; who is there; dark or light; one place for errors.
import { CopilotKitProvider } from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";
import { StrictMode, useCallback, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";
import { HEADERS, RUNTIME_URL, USER } from "./site.js";
import { explain } from "./errors.js";
import { Notice } from "./notice.jsx";
import { PAGES } from "./pages.jsx";
import { useDark } from "./theme.js";
import { usePlace } from "./place.js";
import "./style.css";

function Navigation({ current, go, dark, toggle }) {
  return (
    <nav className="pages" aria-label="Pages">
      <div className="brand"><span className="logo" aria-hidden="true">▲</span> Django + CopilotKit</div>
      <ul>
        {PAGES.map(({ id, title }) => (
          <li key={id}>
            <a href={`#${id}`} aria-current={id === current ? "page" : undefined} onClick={(event) => { event.preventDefault(); go(id); }}>
              {title}
            </a>
          </li>
        ))}
      </ul>
      <div className="visitor">
        <span className="avatar" aria-hidden="true">{USER.slice(0, 1).toUpperCase()}</span> {USER}
        <button type="button" className="quiet" onClick={toggle}>{dark ? "Light" : "Dark"}</button>
      </div>
    </nav>
  );
}

const NONE = [];

function App() {
  const { page: id, thread, go } = usePlace(PAGES[0].id);
  const page = PAGES.find((each) => each.id === id) ?? PAGES[0];
  const [dark, toggle] = useDark();
  const [problem, setProblem] = useState(null);
  const Body = page.body;
  const turn = useCallback((next, at) => { setProblem(null); go(next, at); }, [go]);
  const open = useCallback((at) => turn(page.id, at), [turn, page.id]);
  // Both the failed request and the failed run are reported: the notice is the same one.
  const onError = useCallback(({ error }) => setProblem(explain(error)), []);
  const agents = useMemo(() => page.agents?.(), [page]);
  return (
    <div className="shell">
      <Navigation current={page.id} go={turn} dark={dark} toggle={toggle} />
      <main>
        <header>
          <h1>{page.title}</h1>
          <p>{page.about}</p>
          <button type="button" className="quiet" data-testid="new-thread" onClick={() => open()}>New conversation</button>
        </header>
        {problem && <Notice close={() => setProblem(null)}>{problem}</Notice>}
        {/* Each page has tools of its own: a provider of its own keeps them apart. */}
        <CopilotKitProvider
          key={page.id} agentId={page.agent} headers={HEADERS} onError={onError} enableInspector={false}
          {...(agents ? { agents__unsafe_dev_only: agents } : { runtimeUrl: RUNTIME_URL })}
        >
          <Body agent={page.agent} thread={thread} open={open} samples={page.samples ?? NONE} attachments={page.attachments} />
        </CopilotKitProvider>
      </main>
    </div>
  );
}

createRoot(document.getElementById("root")).render(<StrictMode><App /></StrictMode>);
