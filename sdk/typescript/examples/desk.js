/** The tools of the examples: forecasts run at the same time, a booking needs an approval, and no such city fails. */

import { ToolError, tool } from "toolyard";
import { z } from "zod";

const city = z.string().describe("The name of the city");

export const forecast = tool({
  name: "forecast",
  description: "Tells tomorrow's weather in a city.",
  readOnly: true,
  input: z.object({ city }),
  execute({ city }) {
    if (city === "Atlantis") {
      throw new ToolError("there is no city Atlantis");
    }
    return `${city}: sunny`;
  },
});

export const book = tool({
  name: "book",
  description: "Books a flight to a city.",
  needsApproval: true,
  input: z.object({ city }),
  execute: ({ city }) => `a seat to ${city} is booked`,
});
