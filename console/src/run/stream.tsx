// The ordered output of a run.

import type { Signal } from "@preact/signals";
import { constant } from "../format";
import { Chip, Text, toneOf } from "../ui/basics";
import { TerminalLine } from "../ui/terminal-text";
import { VirtualList } from "../ui/virtual-list";
import { Content } from "./content";
import type { Item, RunModel } from "./model";

const HUES = 6;

export function Stream({ model, version }: { model: RunModel; version: Signal<number> }) {
  const hue = (call: string) => `hue-${(model.calls.get(call)?.index ?? 0) % HUES}`;
  return (
    <VirtualList
      label="Output in its order"
      items={model.items}
      version={version.value}
      keyOf={(item) => item.key}
      render={(item) => <StreamItem item={item} hue={hue(item.call)} />}
    />
  );
}

function StreamItem({ item, hue }: { item: Item; hue: string }) {
  switch (item.kind) {
    case "speaker":
      return (
        <div class={`speaker ${hue}`}>
          <span class="speaker-mark" aria-hidden="true" />
          <strong>
            <Text>{item.tool}</Text>
          </strong>
          <span class="muted mono">
            <Text>{item.call}</Text>
          </span>
          <span class="muted speaker-time">{clock(item.at)}</span>
        </div>
      );
    case "line":
      return (
        <div
          class={`line said ${hue} ${item.channel === "stderr" ? "stderr" : ""} ${item.withdrawn ? "withdrawn" : ""}`}
        >
          <TerminalLine line={item.line} version={item.line.version} />
        </div>
      );
    case "content":
      return (
        <div class={`said block ${hue} ${item.withdrawn ? "withdrawn" : ""}`}>
          <Content content={item.content} />
        </div>
      );
    case "notice":
      return (
        <div class={`said remark tone-${item.tone} ${hue}`}>
          <span class="mono">
            <Text>{item.call}</Text>
          </span>{" "}
          <Text>{item.text}</Text>
        </div>
      );
    case "ended":
      return <Ended item={item} hue={hue} />;
  }
}

function Ended({ item, hue }: { item: Extract<Item, { kind: "ended" }>; hue: string }) {
  const { outcome } = item;
  const results = outcome.result ?? [];
  const why = outcome.error?.message || outcome.reason || "";
  return (
    <div class={`said ended ${hue}`}>
      <div class="ended-head">
        <Chip tone={toneOf(outcome.state)}>{constant(outcome.state, "CALL_STATE_")}</Chip>
        <span class="muted mono">
          <Text>{item.call}</Text>
        </span>
        {outcome.stopped && outcome.stopped !== "STOPPED_UNSPECIFIED" && (
          <span class="muted">stop: {constant(outcome.stopped, "STOPPED_")}</span>
        )}
        {why && (
          <span class="ended-why">
            <Text>{why.slice(0, 2_000)}</Text>
          </span>
        )}
      </div>
      {results.map((content, at) => (
        <div key={at} class="ended-result">
          <Content content={content} />
        </div>
      ))}
    </div>
  );
}

function clock(at: number): string {
  const date = new Date(at);
  return `${date.toTimeString().slice(0, 8)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** The events one by one. */
export function Events({ model, version }: { model: RunModel; version: Signal<number> }) {
  return (
    <VirtualList
      label="Events in their order"
      items={model.seen}
      version={version.value}
      keyOf={(seen) => seen.sequence}
      render={(seen) => (
        <div class="event-row">
          <span class="number muted">{seen.sequence}</span>
          <span class="muted mono">{clock(seen.at)}</span>
          <span class="event-name">{seen.name.replace(/_/g, " ")}</span>
          <span class="mono">
            <Text>{seen.call}</Text>
          </span>
          <span class="event-text">
            <Text>{seen.text}</Text>
          </span>
        </div>
      )}
    />
  );
}
