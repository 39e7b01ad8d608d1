import { useAgent, useThreads } from "@copilotkit/react-core/v2";
import { useEffect, useState } from "react";
import { Chat } from "../chat.jsx";

function Row({ thread, current, open, rename, archive, unarchive, remove }) {
  const [name, setName] = useState(null);
  if (name !== null) {
    return (
      <li>
        <form onSubmit={(event) => { event.preventDefault(); rename(name); setName(null); }}>
          <input aria-label="Name" value={name} autoFocus onChange={(event) => setName(event.target.value)} onBlur={() => setName(null)} />
        </form>
      </li>
    );
  }
  return (
    <li className={thread.archived ? "archived" : ""}>
      <button type="button" className="title" aria-current={current} onClick={open}>{thread.name ?? "Untitled"}</button>
      <span className="verbs">
        <button type="button" aria-label="Rename" onClick={() => setName(thread.name ?? "")}>✎</button>
        {thread.archived
          ? <button type="button" aria-label="Restore" onClick={unarchive}>↩</button>
          : <button type="button" aria-label="Archive" onClick={archive}>▾</button>}
        <button type="button" aria-label="Delete" onClick={remove}>✕</button>
      </span>
    </li>
  );
}

export function Threads(props) {
  const { agent: agentId, thread, open } = props;
  const [archived, setArchived] = useState(false);
  const { agent } = useAgent();
  const {
    threads, isLoading, listError, refetchThreads, renameThread, archiveThread, unarchiveThread, deleteThread,
  } = useThreads({ agentId, includeArchived: archived });
  // Nobody tells the list of a new thread: it is asked for when a run begins, and for its title when that has ended.
  useEffect(() => {
    const { unsubscribe } = agent.subscribe({ onRunStartedEvent: () => refetchThreads(), onRunFinalized: () => refetchThreads() });
    return unsubscribe;
  }, [agent, refetchThreads]);
  const quietly = (promise) => promise.catch(() => refetchThreads());
  return (
    <div className="beside threads-page">
      <aside className="threads">
        <button type="button" className="primary" onClick={() => open()}>New chat</button>
        {listError && <p className="notice" role="alert">The list could not be read.</p>}
        {isLoading && <p className="muted">Loading…</p>}
        <ul data-testid="thread-list">
          {threads.map((each) => (
            <Row
              key={each.id} thread={each} current={each.id === thread} open={() => open(each.id)}
              rename={(name) => quietly(renameThread(each.id, name))}
              archive={() => quietly(archiveThread(each.id))}
              unarchive={() => quietly(unarchiveThread(each.id))}
              remove={() => { quietly(deleteThread(each.id)); if (each.id === thread) open(); }}
            />
          ))}
        </ul>
        <label><input type="checkbox" checked={archived} onChange={(event) => setArchived(event.target.checked)} /> Archived ones, too</label>
      </aside>
      <Chat {...props} />
    </div>
  );
}
