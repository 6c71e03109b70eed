// A piece of content of a tool: text, JSON, an image, a file.

import { useEffect, useState } from "preact/hooks";
import { readObject } from "../api/client";
import { toApiError } from "../api/problem";
import { bytes } from "../format";
import { isDiff, kindOf } from "../text/diff";
import { safeLink } from "../text/escape";
import { Text } from "../ui/basics";
import { JsonTree } from "../ui/json-tree";
import { saveBlob, TerminalText } from "../ui/terminal-text";
import { announce } from "../ui/toast";
import type { Content as ContentOf } from "./model";

/** Types that a browser shows as a picture and never executes. */
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
/** Bytes that are shown as digits. */
const HEX_BYTES_MAX = 64;
/** Larger pictures are fetched when they are asked for. */
const PICTURE_BYTES_MAX = 4 * 1024 * 1024;

export function Content({ content }: { content: ContentOf }) {
  const any = content as {
    text?: string;
    json?: string;
    data?: { media_type?: string; data?: string };
    object?: { object_id?: string; media_type?: string; size_bytes?: number; preview?: string };
    citations?: { url?: string; title?: string }[];
  };
  return (
    <>
      {any.text !== undefined && (isDiff(any.text) ? <Diff text={any.text} /> : <TerminalText text={any.text} />)}
      {any.json !== undefined && <JsonTree json={any.json} />}
      {any.data && <Bytes mediaType={any.data.media_type ?? ""} base64={any.data.data ?? ""} />}
      {any.object && <StoredObject {...any.object} />}
      {any.citations && any.citations.length > 0 && <Citations citations={any.citations} />}
    </>
  );
}

const DIFF_LINES_SHOWN = 400;

export function Diff({ text }: { text: string }) {
  const [shown, setShown] = useState(DIFF_LINES_SHOWN);
  const lines = text.split("\n");
  return (
    <div class="terminal diff">
      {lines.slice(0, shown).map((line, at) => (
        <div key={at} class={`line diff-${kindOf(line)}`}>
          <Text>{line.slice(0, 2_000)}</Text>
        </div>
      ))}
      {lines.length > shown && (
        <button type="button" class="link" onClick={() => setShown(shown * 10)}>
          {lines.length - shown} more lines
        </button>
      )}
    </div>
  );
}

function Bytes({ mediaType, base64 }: { mediaType: string; base64: string }) {
  const blob = fromBase64(base64);
  if (PICTURES.has(mediaType)) return <Picture blob={new Blob([blob], { type: mediaType })} />;
  if (blob.byteLength <= HEX_BYTES_MAX) return <Hex of={blob} />;
  return (
    <FileLine mediaType={mediaType} size={blob.byteLength} onSave={() => saveBlob(new Blob([blob]), "output.bin")} />
  );
}

/** Some bytes that are no text, for example those of a broken character. */
function Hex({ of }: { of: Uint8Array }) {
  const digits = [...of].map((byte) => byte.toString(16).padStart(2, "0").toUpperCase());
  return (
    <span class="mono" title="Bytes that are no text">
      {digits.map((one, at) => (
        <span key={at} class="escape">
          {one}
        </span>
      ))}
    </span>
  );
}

function fromBase64(base64: string): Uint8Array<ArrayBuffer> {
  try {
    const text = atob(base64);
    const all = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at += 1) all[at] = text.charCodeAt(at);
    return all;
  } catch {
    return new Uint8Array(0);
  }
}

function Picture({ blob }: { blob: Blob }) {
  const [address, setAddress] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [blob]);
  return address === "" ? null : <img class="picture" src={address} alt="Output of the tool" />;
}

function FileLine({ mediaType, size, onSave }: { mediaType: string; size: number; onSave: () => void }) {
  return (
    <p class="file-line">
      <span class="mono">
        <Text>{mediaType || "unknown type"}</Text>
      </span>
      <span class="muted">{bytes(size)}</span>
      <button type="button" onClick={onSave}>
        Save
      </button>
    </p>
  );
}

interface StoredProps {
  object_id?: string;
  media_type?: string;
  size_bytes?: number;
  preview?: string;
}

function StoredObject({ object_id = "", media_type = "", size_bytes = 0, preview = "" }: StoredProps) {
  const isPicture = PICTURES.has(media_type);
  const [blob, setBlob] = useState<Blob | undefined>(undefined);
  const [error, setError] = useState("");
  const [wanted, setWanted] = useState(isPicture && size_bytes <= PICTURE_BYTES_MAX);
  useEffect(() => {
    if (!wanted) return;
    const stop = new AbortController();
    readObject(object_id, stop.signal)
      .then((read) => setBlob(new Blob([read], { type: media_type })))
      .catch((failure) => !stop.signal.aborted && setError(toApiError(failure).message));
    return () => stop.abort();
  }, [wanted, object_id]);
  const save = async () => {
    try {
      saveBlob(await readObject(object_id), object_id);
    } catch (failure) {
      announce(toApiError(failure).message, "bad");
    }
  };
  return (
    <div class="object">
      <FileLine mediaType={media_type} size={size_bytes} onSave={save} />
      {isPicture && !wanted && (
        <button type="button" onClick={() => setWanted(true)}>
          Show the picture
        </button>
      )}
      {blob && <Picture blob={blob} />}
      {error && (
        <p class="field-error">
          <Text>{error}</Text>
        </p>
      )}
      {!isPicture && preview && <TerminalText text={preview} />}
    </div>
  );
}

function Citations({ citations }: { citations: { url?: string; title?: string }[] }) {
  return (
    <ul class="citations" aria-label="Sources">
      {citations.map((citation, at) => {
        const link = safeLink(citation.url ?? "");
        const title = citation.title || citation.url || "source";
        return (
          <li key={at}>
            {link ? (
              <a href={link} rel="noopener noreferrer" target="_blank">
                <Text>{title}</Text>
              </a>
            ) : (
              <Text>{title}</Text>
            )}
          </li>
        );
      })}
    </ul>
  );
}
