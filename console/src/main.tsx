import { render } from "preact";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./theme";
import { App } from "./app";

render(<App />, document.getElementById("app") as HTMLElement);
