// Icons as paths of 16 by 16, drawn in the colour of the text.

const PATHS: Record<string, string> = {
  logo: "M3 4h7M3 8h10M3 12h5",
  overview: "M2 13V9m4 4V4m4 9V7m4 6V2",
  runs: "M3 3h10M3 8h10M3 13h6",
  calls: "M5 3 2 8l3 5m6-10 3 5-3 5M9.5 3l-3 10",
  inbox: "M2 9l2-6h8l2 6v4H2V9h3.5l1 2h3l1-2H14",
  parked: "M5 13V3h3.5a3 3 0 0 1 0 6H5",
  tools:
    "M10 2a3.5 3.5 0 0 0-3.3 4.6L2 11.3 4.7 14l4.7-4.7A3.5 3.5 0 0 0 13.7 5L11.5 7 9 4.6 11.2 2.3A3.4 3.4 0 0 0 10 2",
  workers: "M2 3h12v4H2zM2 9h12v4H2zM4.5 5h.01M4.5 11h.01",
  schedules: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2m0 3v3.2l2.2 1.6",
  notifications: "M4 11V7a4 4 0 0 1 8 0v4l1.2 1.5H2.8zM6.8 14.5h2.4",
  health: "M1.5 8.5h3l1.7-5 3 9 1.8-4h3.5",
  system: "M2 3h12v8H2zM6 14h4m-2-3v3",
  light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1v1.5m0 11V15M1 8h1.5m11 0H15M3 3l1 1m8 8 1 1M13 3l-1 1M4 12l-1 1",
  dark: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5",
  keyboard: "M1.5 4h13v8h-13zM4 7h.01M6.7 7h.01M9.3 7h.01M12 7h.01M5 9.8h6",
  "sign-out": "M6 2H3v12h3m4-9 3 3-3 3m3-3H6",
  offline: "M1.5 6a9 9 0 0 1 13 0M4 8.7a5.5 5.5 0 0 1 8 0M8 12h.01M2 2l12 12",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}
