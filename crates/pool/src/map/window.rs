//! The shared mappings of devices' files: at most one for each file and way of reading it, made when the
//! first map needs it and gone with the last.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bindery_demand::published::Published;
use bindery_demand::sigbus::{self, Registration, Serve};
use bindery_sys::mapped::MappedFile;
use bindery_sys::memfd;
use bindery_sys::userfault::Userfault;
use bindery_units::HostAddress;

use super::error::MapError;
use super::map_options::{Lost, MapAccess};
use crate::ObjectId;

/// The least that is mapped of a file: it can grow for a while without a second mapping.
const WINDOW_BYTES_MIN: u64 = 1 << 30;

/// A device's file and what is mapped of it. Held by the windows, so gone with the last of them.
#[derive(Debug)]
pub(super) struct DeviceFile {
    identity: (u64, u64),
    file: File,
    windows: Mutex<Vec<Weak<Window>>>,
    /// Extents that maps show, and how many maps show each. Those of objects, which share no byte.
    shown: Mutex<BTreeMap<Extent, usize>>,
}

/// Range in a file: its first byte, and the one after its last.
pub(super) type Extent = (u64, u64);

/// A file mapped from its beginning.
#[derive(Debug)]
pub(super) struct Window {
    _registration: Registration,
    /// Ends before its mapping does.
    singly: OnceLock<Option<Userfault>>,
    mapped: MappedFile,
    access: MapAccess,
    tenants: Arc<Tenants>,
    device: Arc<DeviceFile>,
}

/// An object of a map whose maker wants reports of lost pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant {
    pub(super) map: u64,
    pub(super) object: ObjectId,
    pub(super) offset_bytes: u64,
    pub(super) bytes: u64,
    pub(super) on_lost: fn(Lost),
}

/// Objects whose makers want reports. A bus error of the file is nobody's to serve.
#[derive(Debug)]
struct Tenants {
    start: HostAddress,
    list: Published<Vec<Tenant>>,
}

impl Serve for Tenants {
    fn serve(&self, address: HostAddress) -> bool {
        let at = (address.0 - self.start.0) as u64;
        self.list.read(|tenants| {
            for tenant in tenants.into_iter().flatten() {
                let Some(inside) = at.checked_sub(tenant.offset_bytes) else { continue };
                if inside < tenant.bytes {
                    let offset_bytes = inside & !(crate::BLOCK_BYTES as u64 - 1);
                    (tenant.on_lost)(Lost { object: tenant.object, offset_bytes });
                }
            }
        });
        false
    }
}

/// All files of which anything is mapped.
#[derive(Debug, Default)]
pub(super) struct DeviceFiles(Mutex<Vec<Weak<DeviceFile>>>);

impl DeviceFiles {
    /// A window of `file` that has its first `bytes`.
    pub(super) fn window(
        &self,
        file: BorrowedFd<'_>,
        bytes: u64,
        access: MapAccess,
    ) -> Result<Arc<Window>, MapError> {
        let what = "tell one device's file from another";
        let identity = memfd::identity(file).map_err(MapError::of_system(what))?;
        let mut files = lock(&self.0);
        files.retain(|file| file.strong_count() > 0);
        let found = files.iter().filter_map(Weak::upgrade).find(|file| file.identity == identity);
        let device = match found {
            Some(device) => device,
            None => {
                let file = file.try_clone_to_owned();
                let file = file.map_err(MapError::of_system("keep a device's file open"))?.into();
                let (windows, shown) = (Mutex::default(), Mutex::default());
                let device = Arc::new(DeviceFile { identity, file, windows, shown });
                files.push(Arc::downgrade(&device));
                device
            }
        };
        device.window(bytes, access)
    }
}

impl DeviceFile {
    fn window(self: Arc<Self>, bytes: u64, access: MapAccess) -> Result<Arc<Window>, MapError> {
        let mut windows = lock(&self.windows);
        windows.retain(|window| window.strong_count() > 0);
        let fits =
            |window: &Arc<Window>| window.access == access && window.mapped.bytes() as u64 >= bytes;
        if let Some(window) = windows.iter().filter_map(Weak::upgrade).find(fits) {
            return Ok(window);
        }
        let window = Arc::new(Window::new(&self, bytes, access)?);
        windows.push(Arc::downgrade(&window));
        Ok(window)
    }

    /// All windows that there are now.
    pub(super) fn windows(&self) -> Vec<Arc<Window>> {
        lock(&self.windows).iter().filter_map(Weak::upgrade).collect()
    }

    /// A map begins to show these extents.
    pub(super) fn show(&self, extents: impl Iterator<Item = Extent>) {
        let mut shown = lock(&self.shown);
        for extent in extents.filter(|(start, end)| start < end) {
            *shown.entry(extent).or_default() += 1;
        }
    }

    /// A map ends to show these extents.
    pub(super) fn hide(&self, extents: impl Iterator<Item = Extent>) {
        let mut shown = lock(&self.shown);
        for extent in extents {
            if let Entry::Occupied(mut maps) = shown.entry(extent) {
                *maps.get_mut() -= 1;
                if *maps.get() == 0 {
                    maps.remove();
                }
            }
        }
    }

    /// Returns true if any map shows something of a range beside these extents, which are sorted.
    pub(super) fn shows_others(&self, (start, end): Extent, extents: &[Extent]) -> bool {
        let shown = lock(&self.shown);
        let before_end = shown.range(..(end, 0)).rev().map(|(extent, _)| extent);
        let mut inside = before_end.take_while(|extent| extent.1 > start);
        inside.any(|extent| extents.binary_search(extent).is_err())
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the file, to be read through the kernel's cache.
    pub(super) const fn cached_file(&self) -> &File {
        &self.file
    }
}

impl Window {
    fn new(device: &Arc<DeviceFile>, bytes: u64, access: MapAccess) -> Result<Self, MapError> {
        let bytes = bytes.max(WINDOW_BYTES_MIN).next_power_of_two() as usize;
        let map = MappedFile::map(device.file(), bytes);
        let mapped = map.map_err(MapError::of_system("map a device's file"))?;
        if access == MapAccess::Random {
            mapped.advise_random().map_err(MapError::of_system("advise random reading"))?;
        }
        let start = mapped.address();
        let tenants = Arc::new(Tenants { start, list: Published::default() });
        let server: Arc<dyn Serve> = Arc::<Tenants>::clone(&tenants);
        let registration = sigbus::register(start, bytes, server);
        let registration = registration.map_err(MapError::of_system("handle SIGBUS"))?;
        let device = Arc::clone(device);
        let singly = OnceLock::new();
        Ok(Self { _registration: registration, singly, mapped, access, tenants, device })
    }

    pub(super) fn mapped(&self) -> &MappedFile {
        &self.mapped
    }

    /// From now on a fault maps the page that was touched and no others, where the kernel can do that.
    pub(super) fn fault_singly(&self) {
        // Without it, neighbours of what was touched count as touched.
        self.singly.get_or_init(|| self.mapped.fault_singly().ok());
    }

    pub(super) fn device(&self) -> &DeviceFile {
        &self.device
    }

    /// Returns a number that differs from that of others while the file lives.
    pub(super) fn holder(&self) -> usize {
        Arc::as_ptr(&self.device).addr()
    }

    pub(super) fn let_in(&self, new: &[Tenant]) {
        self.tenants.list.update(|tenants| {
            let tenants = tenants.map_or(&[][..], Vec::as_slice);
            Some([tenants, new].concat())
        });
    }

    pub(super) fn turn_out(&self, map: u64) {
        self.tenants.list.update(|tenants| {
            let left = tenants.into_iter().flatten().filter(|tenant| tenant.map != map);
            Some(left.copied().collect())
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Lists of what there is: whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
