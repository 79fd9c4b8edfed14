//! What was logged, for tests that say that it is.

use std::sync::{Arc, Mutex};

/// What this thread logged since [`Logged::begin`].
#[derive(Clone, Default)]
pub struct Logged(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logged {
    /// Until what it gives is dropped.
    pub fn begin(&self) -> tracing::subscriber::DefaultGuard {
        let logged = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || logged.clone()).finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// How often these words were logged.
    pub fn times(&self, words: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).matches(words).count()
    }
}
