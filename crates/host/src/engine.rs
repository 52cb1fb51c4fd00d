use crate::status::*;
use crate::stop::Stopping;
use bindery_guest::*;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
#[derive(Debug)]
pub(crate) struct Engine(Mutex<Settings>);
impl Engine {
    pub(crate) fn new(workers: u32, period: Duration) -> Self {
        Self(Mutex::new(Settings { workers, period_ms: period.as_millis() as u64 }))
    }
    pub(crate) fn run(&self, s: &Stopping) {
        while !s.is_set() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    pub(crate) fn wake(&self) {}
    pub(crate) fn settings(&self) -> Settings {
        *self.0.lock().unwrap()
    }
    pub(crate) fn set(&self, w: Option<u32>, p: Option<Duration>) {
        let mut s = self.0.lock().unwrap();
        if let Some(w) = w {
            s.workers = w
        }
        if let Some(p) = p {
            s.period_ms = p.as_millis() as u64
        }
    }
    pub(crate) fn domains(&self) -> Vec<DomainStatus> {
        vec![]
    }
    pub(crate) fn guests(&self) -> Vec<GuestStatus> {
        vec![]
    }
    pub(crate) fn add(&self, a: Arrival, _id: u32, _n: String) -> Result<Arc<Guest>, GuestError> {
        a.refuse("x");
        Err(GuestError::Gone)
    }
    pub(crate) fn remove(&self, _: u32) {}
    pub(crate) fn unmerge(&self, _: u32) -> Result<u64, GuestError> {
        Ok(0)
    }
    pub(crate) fn merge(&self, _: u32) -> Result<u64, GuestError> {
        Ok(0)
    }
    pub(crate) fn release(&self, _: u32) -> Result<(), GuestError> {
        Ok(())
    }
}
