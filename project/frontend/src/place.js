// Page and thread are in the address: #page/thread. So a reload finds the conversation, and Back goes back.
import { useCallback, useEffect, useState } from "react";

const read = (first) => {
  const [page, thread] = location.hash.slice(1).split("/");
  return { page: page || first, thread: thread && decodeURIComponent(thread) };
};

export function usePlace(first) {
  const [place, setPlace] = useState(() => withThread(read(first)));
  useEffect(() => {
    const changed = () => setPlace(withThread(read(first)));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, [first]);
  const go = useCallback((page, thread = crypto.randomUUID()) => {
    location.hash = `${page}/${encodeURIComponent(thread)}`;
  }, []);
  return { ...place, go };
}

// The client names threads: the server knows a new one when its first message arrives.
function withThread({ page, thread }) {
  if (thread) return { page, thread };
  const made = crypto.randomUUID();
  history.replaceState(null, "", `#${page}/${made}`);
  return { page, thread: made };
}
