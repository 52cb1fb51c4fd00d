//! Reading the configuration file again, on `SIGHUP` or when an operator asks.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::Shared;
use crate::daemon_settings::DaemonSettings;
use crate::notify::Progress;

/// Reads settings anew: all of them, checked, or what is wrong and where.
#[derive(Clone)]
pub struct Reload(Arc<dyn Fn() -> Result<DaemonSettings, String> + Send + Sync>);

impl Reload {
    /// Settings come from `read`. May be called from any thread.
    pub fn new(read: impl Fn() -> Result<DaemonSettings, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

impl Shared {
    /// Takes up the settings of the file. If anything in it is wrong, or cannot be now, nothing is changed.
    pub(super) fn reload(&self) -> Result<DaemonSettings, String> {
        let none = "this daemon has no configuration file: start it with --config FILE";
        let read = self.reload.as_ref().ok_or(none)?;
        // Held throughout: what was read first is not taken up last.
        let _turn = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.notifier.say(Progress::Reloading);
        let settings = (read.0)().and_then(|settings| {
            let replaced = self.engine.replace_settings(settings);
            replaced.map(|()| settings).map_err(|refused| refused.message)
        });
        if settings.is_ok() {
            tracing::info!("the configuration file was read again");
        }
        // As it was, if the file is wrong or asks for what cannot be now.
        self.notifier.say(Progress::Ready);
        settings
    }
}
