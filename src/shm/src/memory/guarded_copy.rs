//! Copies from and to memory of one's own process that may not be there: an error in place of a
//! signal that ends the program.
//!
//! A slot that runs in a program writes to memory that the program registered and may have
//! unmapped, protected, or cut off with its file since. So the copy is one function whose code is
//! known (`copy`), and a handler for SIGSEGV and SIGBUS is installed, once in a process. Where
//! the kernel says that an instruction of this function has faulted, the function returns how many
//! bytes are left, and everything else is passed on to the handler that was there before, or to the
//! default action, as if ours were not there. It is the technique of gVisor's `safecopy`.
//!
//! The handler must be the one that the kernel calls. The shim has a program that installs another
//! one later do that behind ours ([`exchange`]); one without the shim, or by a system call of its
//! own, takes it away, as a thread does that blocks the signals. Who copies asks
//! shortly before (`is_guarded`), and goes another way then ([`own_memory`](super::own_memory)).
//!
//! Debuggers stop at the signal as at any other; to go on is right.

use crate::signals::{FAULTS, is_fault_blocked};
use libc::{c_int, c_void, siginfo_t};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Copies bytes forward, and returns how many were not copied, because they, or their place, are
/// not there: 0, unless [`is_guarded`] and that is so. Stores are made in the order of the bytes,
/// up to 16 of them at once, and 1, 2, 4 or 8 bytes in all by a single store.
///
/// # Safety
/// Nothing else in this process may rely on the bytes of `target`, or be in the way of reading
/// those of `source`, and the two must not overlap. Where the copy is not guarded, both must be
/// there.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn copy(target: *mut u8, source: *const u8, len: usize) -> usize {
    // At every instruction that can fault, `rdx` is what is left. x86 shows stores in the order in
    // which they are made.
    std::arch::naked_asm!(
        "20:",
        "cmp rdx, 64",
        "jb 22f",
        "21:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "cmp rdx, 64",
        "jae 21b",
        "22:",
        "cmp rdx, 8",
        "jb 23f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "jmp 22b",
        "23:",
        "test rdx, 4",
        "jz 24f",
        "mov eax, [rsi]",
        "mov [rdi], eax",
        "add rsi, 4",
        "add rdi, 4",
        "sub rdx, 4",
        "24:",
        "test rdx, 2",
        "jz 25f",
        "movzx eax, word ptr [rsi]",
        "mov [rdi], ax",
        "add rsi, 2",
        "add rdi, 2",
        "sub rdx, 2",
        "25:",
        "test rdx, 1",
        "jz 26f",
        "movzx eax, byte ptr [rsi]",
        "mov [rdi], al",
        "sub rdx, 1",
        "26:",
        "mov rax, rdx",
        "ret",
        ".org 20b + {fault}, 0xcc",
        "mov rax, rdx",
        "ret",
        ".org 20b + {end}, 0xcc",
        fault = const FAULT,
        end = const END,
    )
}

/// Where in [`copy`] its code goes on after a fault, and where it ends.
const FAULT: usize = 240;
const END: usize = 256;

/// Copies nothing: here, nothing can be guarded.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(_target: *mut u8, _source: *const u8, len: usize) -> usize {
    len
}

/// What a signal does behind our handler. A handler that is exchanged while its signal is handled
/// may be called with the flags of the other: on x86-64 it finds its arguments all the same.
struct Behind {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// The signals that are blocked meanwhile: the first word of a `sigset_t`, which has all.
    mask: AtomicU64,
}

/// By the order of [`FAULTS`].
static BEHIND: [Behind; 2] = [const { Behind::new() }; 2];

/// What a signal is handled by; a union in C.
type Handler = extern "C-unwind" fn(c_int);
/// The same with `SA_SIGINFO`, as ours is.
type InfoHandler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

impl Behind {
    const fn new() -> Behind {
        let (flags, mask) = (AtomicI32::new(0), AtomicU64::new(0));
        Behind { handler: AtomicUsize::new(libc::SIG_DFL), flags, mask }
    }

    fn of(signal: c_int) -> Option<&'static Behind> {
        FAULTS.iter().zip(&BEHIND).find(|&(of, _)| *of == signal).map(|(_, behind)| behind)
    }

    fn set(&self, action: &libc::sigaction) {
        // SAFETY: a set of signals is longer than a word, and made of words.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        self.mask.store(mask, Ordering::SeqCst);
        self.flags.store(action.sa_flags, Ordering::SeqCst);
        self.handler.store(action.sa_sigaction, Ordering::SeqCst);
    }

    fn get(&self) -> libc::sigaction {
        let mut action = default_action();
        action.sa_sigaction = self.handler.load(Ordering::SeqCst);
        action.sa_flags = self.flags.load(Ordering::SeqCst);
        let mask = self.mask.load(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(mask) };
        action
    }
}

/// Has copies guarded in this process from now on, if that is possible. It stays so: what was there
/// before cannot be put back once others have built on ours.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    if cfg!(target_arch = "x86_64") {
        ONCE.call_once(|| FAULTS.into_iter().zip(&BEHIND).for_each(|(s, b)| install_one(s, b)));
    }
}

fn install_one(signal: c_int, behind: &Behind) {
    let mut before = default_action();
    // SAFETY: it only asks, and writes to what is ours.
    if unsafe { libc::sigaction(signal, std::ptr::null(), &mut before) } != 0 {
        return;
    }
    // It is known before ours can be called.
    behind.set(&before);
    let mut ours = default_action();
    ours.sa_sigaction = on_fault as InfoHandler as usize;
    // On a stack of its own where the thread has one, since what is passed on may be an overflow of
    // the usual one.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | before.sa_flags & libc::SA_RESTART;
    // SAFETY: the handler is a function that is there as long as this code is, and does with each
    // fault what was done before, except with those of `copy`. If that is refused, nothing is
    // guarded.
    unsafe { libc::sigaction(signal, &ours, std::ptr::null_mut()) };
}

/// Has a signal do behind our handler what a program asks for, if the kernel calls ours: what the
/// shim does in place of `sigaction`, so that copies stay guarded. Returns what it did so far;
/// `None` if the signal is another one, or ours is not called: then it is a matter of libc alone.
pub fn exchange(signal: c_int, action: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let behind = Behind::of(signal).filter(|_| is_called(signal))?;
    let before = behind.get();
    if let Some(action) = action {
        behind.set(action);
    }
    Some(before)
}

/// The default action, without flags and with an empty mask.
pub fn default_action() -> libc::sigaction {
    // SAFETY: zeros are such an action.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// An action as the kernel has it on x86-64.
#[derive(Default)]
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Asks the kernel what a signal does, or has it do the default. libc's function may be the shim's.
fn kernel_action(signal: c_int, set_default: bool) -> Option<KernelAction> {
    let (default, mut before) = (KernelAction::default(), KernelAction::default());
    let new = if set_default { &raw const default } else { std::ptr::null() };
    // SAFETY: both are actions as the kernel has them, whose masks have 8 bytes.
    let done = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut before, 8) };
    (done == 0).then_some(before)
}

/// Whether the kernel calls our handler at a signal.
fn is_called(signal: c_int) -> bool {
    let ours = on_fault as InfoHandler as usize;
    let is_ours = || kernel_action(signal, false).is_some_and(|action| action.handler == ours);
    cfg!(target_arch = "x86_64") && is_ours()
}

/// Whether a fault of [`copy`] in this thread would be noticed: the kernel calls our handler first,
/// and may call it. Three system calls.
pub(crate) fn is_guarded() -> bool {
    FAULTS.into_iter().all(is_called) && !is_fault_blocked()
}

/// The handler of both signals.
extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls this with both, or who was called by it.
    let is_fault = unsafe { (*info).si_code } > 0;
    // OWN-021
    // SAFETY: the same.
    if !(is_fault && unsafe { leave_copy(context) }) {
        pass_on(signal, is_fault, info, context);
    }
}

/// Has [`copy`] go on where it says that it has failed. `false` if something else has faulted.
///
/// # Safety
/// It must be the context that a signal interrupted.
#[cfg(target_arch = "x86_64")]
unsafe fn leave_copy(context: *mut c_void) -> bool {
    let start = copy as *const () as usize;
    // SAFETY: the caller's promise.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = &mut registers[libc::REG_RIP as usize];
    let is_in_copy = (start..start + FAULT).contains(&(*at as usize));
    if is_in_copy {
        *at = (start + FAULT) as i64;
    }
    is_in_copy
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn leave_copy(_context: *mut c_void) -> bool {
    false
}

/// Does what would have been done without us.
fn pass_on(signal: c_int, is_fault: bool, info: *mut siginfo_t, context: *mut c_void) {
    let Some(behind) = Behind::of(signal) else { return };
    let action = behind.get();
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        behind.handler.store(libc::SIG_DFL, Ordering::SeqCst);
    }
    match action.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        // The kernel lets nobody ignore a fault.
        libc::SIG_DFL | libc::SIG_IGN => end(signal, is_fault),
        handler => {
            // SAFETY: sets of signals. When we return, what was blocked before is again.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &action.sa_mask, std::ptr::null_mut());
                if action.sa_flags & libc::SA_NODEFER != 0 {
                    let mut this = MaybeUninit::uninit();
                    libc::sigemptyset(this.as_mut_ptr());
                    libc::sigaddset(this.as_mut_ptr(), signal);
                    let none = std::ptr::null_mut();
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, this.as_ptr(), none);
                }
            }
            // SAFETY: the program has given it as a handler of this kind. It may never return.
            unsafe {
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    std::mem::transmute::<usize, InfoHandler>(handler)(signal, info, context);
                } else {
                    std::mem::transmute::<usize, Handler>(handler)(signal);
                }
            }
        }
    }
}

/// The default action: the program ends when the handler returns, by the same fault where it was
/// one, so that a core file shows where.
fn end(signal: c_int, is_fault: bool) {
    kernel_action(signal, true);
    if !is_fault {
        // SAFETY: a signal to this thread, which waits until the handler has returned.
        unsafe { libc::raise(signal) };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use libc::{SIGBUS, SIGSEGV};
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::sync::atomic::AtomicU32;
    use urxe_shell::testing::alone;

    /// What a program of [`as_a_program`] does.
    const WHAT: &str = "URXE_TEST_SIGNALS";
    /// What it ends with if all is as it should be: a test program without this test ends with 0.
    const RIGHT: i32 = 42;
    const PAGE: usize = 4096;

    /// The page that the handlers of a program give back, and how often they were called.
    static PLACE: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicU32 = AtomicU32::new(0);

    /// A page that cannot be accessed.
    fn bad_page() -> *mut u8 {
        let (null, none) = (std::ptr::null_mut(), ProtFlags::empty());
        // SAFETY: a null hint without MAP_FIXED replaces nothing.
        let page = unsafe { rustix::mm::mmap_anonymous(null, PAGE, none, MapFlags::PRIVATE) };
        page.unwrap().cast()
    }

    fn touch(page: *mut u8) {
        // SAFETY: the page is mapped, if a handler sees to it that it can be accessed; otherwise
        // the program ends here, as it is to.
        unsafe { page.write_volatile(1) };
    }

    extern "C-unwind" fn give_back(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel calls this with it.
        let addr = unsafe { (*info).si_addr() } as usize;
        give_back_plainly(if addr == PLACE.load(Ordering::SeqCst) { SIGSEGV } else { 0 });
    }

    extern "C-unwind" fn give_back_plainly(signal: c_int) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let place = std::ptr::with_exposed_provenance_mut(PLACE.load(Ordering::SeqCst));
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: a page that nobody has a reference to.
        let given = unsafe { rustix::mm::mprotect(place, PAGE, both) };
        if signal != SIGSEGV || given.is_err() {
            // SAFETY: ends the program.
            unsafe { libc::_exit(3) };
        }
    }

    fn set(signal: c_int, handler: usize, flags: c_int) {
        let mut action = default_action();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        // SAFETY: handlers of this program.
        assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
    }

    fn faults_are_noticed() -> bool {
        let page = bad_page();
        // SAFETY: copies into a page that nobody has a reference to, and out of data of ours.
        is_guarded() && unsafe { copy(page, [1; 8].as_ptr(), 8) } == 8
    }

    /// Has a handler of the program called for a fault of the program's own.
    fn is_handled(handler: usize, flags: c_int) -> bool {
        set(SIGSEGV, handler, flags);
        install();
        let page = bad_page();
        PLACE.store(page.expose_provenance(), Ordering::SeqCst);
        touch(page);
        CALLS.load(Ordering::SeqCst) == 1 && faults_are_noticed()
    }

    fn raise(signal: c_int) {
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(signal) };
    }

    /// No test of its own: a program with signals of its own. It ends with [`RIGHT`] for `true`.
    #[test]
    fn as_a_program() {
        let Ok(what) = std::env::var(WHAT) else { return };
        let plain = give_back_plainly as Handler as usize;
        let with_info = give_back as InfoHandler as usize;
        let is_right = match &*what {
            "handles" => is_handled(with_info, libc::SA_SIGINFO),
            "handles plainly" => is_handled(plain, libc::SA_NODEFER),
            "handles once" => {
                let is_right = is_handled(plain, libc::SA_RESETHAND);
                touch(bad_page());
                is_right
            }
            "handles what is sent" => {
                set(SIGSEGV, plain, 0);
                install();
                PLACE.store(bad_page().expose_provenance(), Ordering::SeqCst);
                raise(SIGSEGV);
                CALLS.load(Ordering::SeqCst) == 1
            }
            "ignores" => {
                set(SIGSEGV, libc::SIG_IGN, 0);
                install();
                raise(SIGSEGV);
                let is_right = faults_are_noticed();
                touch(bad_page());
                !is_right
            }
            "does nothing" => {
                set(SIGSEGV, libc::SIG_DFL, 0);
                install();
                touch(bad_page());
                false
            }
            "is sent one" => {
                set(SIGBUS, libc::SIG_DFL, 0);
                install();
                raise(SIGBUS);
                false
            }
            "handles later" => {
                install();
                let is_right = faults_are_noticed();
                set(SIGBUS, plain, 0);
                is_right && !is_guarded()
            }
            "exchanges" => {
                install();
                let mut action = default_action();
                (action.sa_sigaction, action.sa_flags) = (with_info, libc::SA_SIGINFO);
                let before = exchange(SIGSEGV, Some(&action)).unwrap();
                let page = bad_page();
                PLACE.store(page.expose_provenance(), Ordering::SeqCst);
                touch(page);
                let now = exchange(SIGSEGV, None).unwrap();
                before.sa_sigaction != with_info
                    && (now.sa_sigaction, now.sa_flags) == (with_info, libc::SA_SIGINFO)
                    && CALLS.load(Ordering::SeqCst) == 1
                    && faults_are_noticed()
                    && exchange(libc::SIGUSR1, Some(&action)).is_none()
            }
            "blocks" => {
                install();
                let is_right = faults_are_noticed();
                let mut set = MaybeUninit::uninit();
                // SAFETY: a set of signals that is written to first.
                unsafe {
                    libc::sigemptyset(set.as_mut_ptr());
                    libc::sigaddset(set.as_mut_ptr(), SIGBUS);
                    libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
                }
                is_right && !is_guarded() && std::thread::spawn(is_guarded).join().is_ok()
            }
            other => panic!("{other}"),
        };
        std::process::exit(if is_right { RIGHT } else { 1 });
    }

    fn run(what: &str) -> ExitStatus {
        let mut program = alone("memory::guarded_copy::tests::as_a_program");
        program.env(WHAT, what).output().unwrap().status
    }

    #[test]
    fn faults_of_the_program_reach_the_handler_that_it_has() {
        for what in ["handles", "handles plainly", "handles what is sent", "exchanges"] {
            let status = run(what);
            assert_eq!(status.code(), Some(RIGHT), "{what}: {status}");
        }
    }

    #[test]
    fn a_program_without_a_handler_ends_by_the_signal() {
        for what in ["does nothing", "ignores", "handles once"] {
            assert_eq!(run(what).signal(), Some(SIGSEGV), "{what}");
        }
        assert_eq!(run("is sent one").signal(), Some(SIGBUS));
    }

    #[test]
    fn nothing_is_guarded_where_the_program_has_taken_the_signals() {
        for what in ["handles later", "blocks"] {
            let status = run(what);
            assert_eq!(status.code(), Some(RIGHT), "{what}: {status}");
        }
    }
}
