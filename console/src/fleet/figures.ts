// What several parts of the console show: the figures of the overview, and how many runs and calls there are.

import { api } from "../api/client";
import { sharedPoll } from "../api/poll";

/** How often figures are read on a page that is about them. */
export const FIGURES_MS = 2_000;

/** The overview, with what is paused. */
export const useOverview = sharedPoll((signal) => api.get("/v1/overview", { signal }));

/** The counts of all runs and calls that the user may see. */
export const useCounts = sharedPoll((signal) => api.get("/v1/counts", { signal }));
