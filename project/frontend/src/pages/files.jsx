import { useState } from "react";
import { Chat } from "../chat.jsx";
import { Notice } from "../notice.jsx";

export const accepted = { enabled: true, accept: "image/*,audio/*,video/*,application/pdf,text/plain,text/csv" };

export function Files({ attachments, ...props }) {
  const [refused, setRefused] = useState("");
  return (
    <>
      {refused && <Notice close={() => setRefused("")}>{refused}</Notice>}
      <Chat {...props} attachments={{ ...attachments, onUploadFailed: ({ message }) => setRefused(message) }} />
    </>
  );
}
