//! A budget of steps for checks. Every check counts its steps, so its time and memory are bounded by its budget.

/// Steps of any check: enough for the largest schema and a value of some hundred parts. Some 2 ms.
const STEPS_MIN: u64 = 100_000;
/// Steps beside that for each byte of the value. JSON has some eight bytes a part, so each part may be checked by 32
/// subschemas on average. 256 KiB: some 25 ms.
const STEPS_PER_BYTE: u64 = 4;
/// Steps of all calls of a request, beside those for its bytes.
const STEPS_PER_REQUEST: u64 = 1_000_000;

/// Steps that are left.
#[derive(Debug)]
pub struct Steps {
    left: u64,
}

/// A check needs more steps than it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the check needs more steps than it may take")]
pub struct Exhausted;

impl Steps {
    /// For a value of so many bytes.
    #[must_use]
    pub const fn of(bytes: usize) -> Self {
        Self { left: STEPS_MIN + STEPS_PER_BYTE * bytes as u64 }
    }

    /// For all values of a request, which have so many bytes together.
    #[must_use]
    pub const fn of_request(bytes: usize) -> Self {
        Self { left: STEPS_PER_REQUEST + STEPS_PER_BYTE * bytes as u64 }
    }

    /// For one value of so many bytes that does not fit, and is explained as well.
    #[must_use]
    pub const fn of_one(bytes: usize) -> Self {
        Self { left: 2 * Self::of(bytes).left }
    }

    /// The budget of one of several values that share these steps. [Give back](Self::give_back) the unused rest.
    #[must_use]
    pub fn lend(&mut self, bytes: usize) -> Self {
        let left = Self::of(bytes).left.min(self.left);
        self.left -= left;
        Self { left }
    }

    /// Adds steps that were not used.
    pub fn give_back(&mut self, rest: Self) {
        self.left += rest.left;
    }

    /// Takes steps.
    ///
    /// # Errors
    /// When fewer are left; then none are left.
    pub fn take(&mut self, steps: u64) -> Result<(), Exhausted> {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(Exhausted)
            }
        }
    }
}
