// What went wrong, until the visitor has read it.
export function Notice({ close, children }) {
  return <div className="notice" role="alert">{children} <button type="button" className="quiet" onClick={close}>Close</button></div>;
}
