import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { connectionLost } from "./api/poll";
import { key, keyNeeded, signOut } from "./api/session";
import { useCounts } from "./fleet/figures";
import { AnswerPage } from "./pages/answer";
import { CallPage } from "./pages/call";
import { CallsPage } from "./pages/calls";
import { HealthPage } from "./pages/health";
import { InboxPage } from "./pages/inbox";
import { KeyPage } from "./pages/key";
import { NotificationsPage } from "./pages/notifications";
import { OverviewPage } from "./pages/overview";
import { ParkedPage } from "./pages/parked";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { SchedulesPage } from "./pages/schedules";
import { ToolPage } from "./pages/tool";
import { ToolsPage } from "./pages/tools";
import { WorkersPage } from "./pages/workers";
import { href, navigate, route } from "./router";
import { shortcuts, useShortcuts } from "./shortcuts";
import { nextTheme, theme } from "./theme";
import { Page } from "./ui/basics";
import { DialogHost, openDialog } from "./ui/dialog";
import { Icon } from "./ui/icons";
import { Toasts } from "./ui/toast";

interface Place {
  path: string;
  title: string;
  /** The second key of the shortcut `g …`. */
  key: string;
  page: ComponentType;
  group: "work" | "fleet" | "system";
}

const PLACES: Place[] = [
  { path: "overview", title: "Overview", key: "o", page: OverviewPage, group: "work" },
  { path: "runs", title: "Runs", key: "r", page: RunsPage, group: "work" },
  { path: "calls", title: "Calls", key: "c", page: CallsPage, group: "work" },
  { path: "inbox", title: "Inbox", key: "i", page: InboxPage, group: "work" },
  { path: "parked", title: "Parked", key: "p", page: ParkedPage, group: "work" },
  { path: "tools", title: "Tools", key: "t", page: ToolsPage, group: "fleet" },
  { path: "workers", title: "Workers", key: "w", page: WorkersPage, group: "fleet" },
  { path: "schedules", title: "Schedules", key: "s", page: SchedulesPage, group: "fleet" },
  { path: "notifications", title: "Notifications", key: "n", page: NotificationsPage, group: "system" },
  { path: "health", title: "Health", key: "h", page: HealthPage, group: "system" },
];

const GROUPS = [
  { id: "work", title: "Work" },
  { id: "fleet", title: "Fleet" },
  { id: "system", title: "System" },
] as const;

/** The page of the present address. */
function Current() {
  const [first = "overview", second, third, fourth] = route.value.parts;
  if (first === "runs" && second && third === "calls" && fourth)
    return <CallPage key={`${second}/${fourth}`} runId={second} callId={fourth} />;
  if (first === "runs" && second) return <RunPage key={second} runId={second} />;
  if (first === "tools" && second) return <ToolPage key={second} name={second} />;
  const place = PLACES.find((one) => one.path === first);
  if (!place) {
    return (
      <Page title="No such page">
        <p>
          Nothing is at this address. <a href={href("overview")}>Go to the overview</a>.
        </p>
      </Page>
    );
  }
  const Shown = place.page;
  return <Shown key={first} />;
}

const THEMES = { system: "as the system", light: "light", dark: "dark" } as const;

/** How often the inbox is counted. */
const INBOX_MS = 5_000;

function Sidebar() {
  const here = route.value.parts[0] ?? "overview";
  const counts = useCounts(INBOX_MS).value.data;
  const waiting = (counts?.awaiting_approval ?? 0) + (counts?.waiting_for_client ?? 0);
  return (
    <nav class="sidebar" aria-label="Pages">
      <a class="brand" href={href("overview")} aria-label="Toolyard">
        <Icon name="logo" />
        <span>Toolyard</span>
      </a>
      {GROUPS.map((group) => (
        <ul key={group.id} aria-label={group.title}>
          {PLACES.filter((place) => place.group === group.id).map((place) => (
            <li key={place.path}>
              <a href={href(place.path)} aria-current={here === place.path ? "page" : undefined}>
                <Icon name={place.path} />
                <span>{place.title}</span>
                {place.path === "inbox" && waiting > 0 && (
                  <span class="badge">
                    {waiting > 999 ? "999+" : waiting}
                    <span class="visually-hidden"> wait for a person</span>
                  </span>
                )}
              </a>
            </li>
          ))}
        </ul>
      ))}
      <div class="sidebar-foot">
        <button
          type="button"
          class="ghost"
          onClick={nextTheme}
          aria-label={`Theme: ${THEMES[theme.value]}. Change it`}
          title={`Theme: ${THEMES[theme.value]}`}
        >
          <Icon name={theme.value} />
        </button>
        <button
          type="button"
          class="ghost"
          onClick={openHelp}
          aria-label="Keyboard shortcuts"
          title="Keyboard shortcuts (?)"
        >
          <Icon name="keyboard" />
        </button>
        {key.value !== "" && (
          <button
            type="button"
            class="ghost"
            onClick={() => signOut("You have signed out.")}
            aria-label="Sign out"
            title="Sign out"
          >
            <Icon name="sign-out" />
          </button>
        )}
      </div>
    </nav>
  );
}

function openHelp(): void {
  const listed = new Map(shortcuts.value.map((one) => [one.keys, one.label]));
  openDialog({
    title: "Keyboard shortcuts",
    body: (
      <dl class="shortcut-list">
        {[...listed].map(([keys, label]) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((one) => (
                <kbd key={one}>{one}</kbd>
              ))}
            </dt>
            <dd>{label}</dd>
          </div>
        ))}
      </dl>
    ),
  });
}

export function App() {
  const main = useRef<HTMLElement>(null);
  const path = route.value.parts.join("/");
  useShortcuts(
    [
      { keys: "?", label: "Show this help", run: openHelp },
      { keys: "d", label: "Change the theme", run: nextTheme },
      ...PLACES.map((place) => ({
        keys: `g ${place.key}`,
        label: `Go to ${place.title.toLowerCase()}`,
        run: () => navigate(href(place.path)),
      })),
    ],
    [],
  );
  const isFirst = useRef(true);
  useEffect(() => {
    const title = main.current?.querySelector("h1")?.textContent ?? "";
    document.title = title ? `${title} · Toolyard` : "Toolyard";
    // After a change of the page the keyboard goes on at its beginning, and a screen reader reads its title.
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [path]);
  const skip = (event: MouseEvent) => {
    event.preventDefault();
    main.current?.focus();
  };
  // A link to one question is for people without a key, who can see no other page.
  if (route.value.parts[0] === "answer") {
    return (
      <div class="app alone">
        <main id="main" ref={main} tabIndex={-1}>
          <AnswerPage key={path} />
        </main>
        <Toasts />
      </div>
    );
  }
  if (keyNeeded.value !== "") {
    return (
      <>
        <KeyPage why={keyNeeded.value} />
        <Toasts />
      </>
    );
  }
  return (
    <div class="app">
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <Sidebar />
      <main id="main" ref={main} tabIndex={-1}>
        <p class="connection" role="status">
          {connectionLost.value !== "" && (
            <>
              <Icon name="offline" /> Reconnecting: {connectionLost.value}
            </>
          )}
        </p>
        <Current />
      </main>
      <Toasts />
      <DialogHost />
    </div>
  );
}
