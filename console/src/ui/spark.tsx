import { plain } from "../text/escape";

interface Props {
  /** The oldest first. */
  values: readonly number[];
  label: string;
  width?: number;
  height?: number;
}

/** A small curve. It begins at zero, so that curves can be compared. */
export function Spark({ values, label, width = 96, height = 22 }: Props) {
  const most = Math.max(1, ...values);
  const x = (at: number) => ((at / Math.max(1, values.length - 1)) * width).toFixed(1);
  const y = (value: number) => (height - 1 - (value / most) * (height - 3)).toFixed(1);
  const line = values.map((value, at) => `${x(at)},${y(value)}`).join(" ");
  return (
    <svg
      class="spark"
      viewBox={`0 0 ${width} ${height}`}
      width={width}
      height={height}
      preserveAspectRatio="none"
      role="img"
      aria-label={plain(label)}
    >
      <polygon class="spark-area" points={`0,${height} ${line} ${width},${height}`} />
      <polyline class="spark-line" points={line} />
    </svg>
  );
}
