import { useState } from "react";
import { Chat } from "../chat.jsx";

export const accepted = { enabled: true, accept: "image/*,audio/*,video/*,application/pdf,text/plain,text/csv" };

export function Files({ attachments, ...props }) {
  const [refused, setRefused] = useState("");
  return (
    <>
      {refused && <div className="notice" role="alert">{refused}</div>}
      <Chat {...props} attachments={{ ...attachments, onUploadFailed: ({ message }) => setRefused(message) }} />
    </>
  );
}
