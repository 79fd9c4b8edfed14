//! Whatever is wrong is refused in a sentence that says what to do, has a
//! class that a program can branch on, and changes nothing.

mod support;

mod bad_input {
    mod changed;
    mod fuzz;
    mod input;
    mod refusal;
    mod servers;
}
