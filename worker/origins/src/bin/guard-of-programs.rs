//! The guard of a program as a program of its own: this crate's tests have no main function that could be one.

fn main() {
    sandbox::enter();
}
