//! Whatever is wrong is refused in a sentence that says what to do, has a
//! class that a program can branch on, and changes nothing.

#[allow(unreachable_pub, reason = "`pub` marks what tests may use")]
mod support;

mod bad_input {
    mod fuzz;
    mod input;
    mod refusal;
    mod servers;
}
