//! Copies from and to memory of one's own process that may not be there: an error in place of a
//! signal that ends the program.
//!
//! A slot that runs in a program writes to memory that the program registered and may have
//! unmapped, protected, or cut off with its file since. So the copy is one function whose code is
//! known ([`copy`]), and a handler for SIGSEGV and SIGBUS is installed, once in a process. Where
//! the kernel says that an instruction of this function has faulted, the function returns how many
//! bytes are left, and everything else is passed on to the handler that was there before, or to the
//! default action, as if ours were not there. It is the technique of gVisor's `safecopy`.
//!
//! The handler must be the one that the kernel calls: a program that installs another one later,
//! or that has a thread block the signals, takes that away. Who copies asks before
//! ([`is_guarded`]), and goes another way then ([`own_memory`](super::own_memory)).
//!
//! Debuggers stop at the signal as at any other; to go on is right.

use libc::{SIGBUS, SIGSEGV, c_int, c_void, siginfo_t};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

/// The signals of memory that is not there: of addresses without a page, and of pages without
/// bytes.
pub(crate) const SIGNALS: [c_int; 2] = [SIGSEGV, SIGBUS];

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

/// What a signal did before.
struct Previous {
    action: libc::sigaction,
    /// It was to be called once, and was.
    spent: AtomicBool,
}

/// By the order of [`SIGNALS`].
static PREVIOUS: [OnceLock<Previous>; 2] = [OnceLock::new(), OnceLock::new()];

/// What a signal is handled by; a union in C.
type Handler = extern "C-unwind" fn(c_int);
/// The same with `SA_SIGINFO`, as ours is.
type InfoHandler = extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Has copies guarded in this process from now on, if that is possible. It stays so: what was there
/// before cannot be put back once others have built on ours.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    if cfg!(target_arch = "x86_64") {
        ONCE.call_once(|| SIGNALS.into_iter().zip(&PREVIOUS).for_each(|(s, p)| install_one(s, p)));
    }
}

fn install_one(signal: c_int, previous: &OnceLock<Previous>) {
    let Some(action) = action_of(signal) else { return };
    let restart = action.sa_flags & libc::SA_RESTART;
    // It is known before ours can be called.
    let _ = previous.set(Previous { action, spent: AtomicBool::new(false) });
    let mut ours = default_action();
    ours.sa_sigaction = on_fault as InfoHandler as usize;
    // On a stack of its own where the thread has one, since what is passed on may be an overflow of
    // the usual one.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | restart;
    // SAFETY: the handler is a function that is there as long as this code is, and does with each
    // fault what was done before, except with those of `copy`. If that is refused, nothing is
    // guarded.
    unsafe { libc::sigaction(signal, &ours, std::ptr::null_mut()) };
}

fn default_action() -> libc::sigaction {
    // SAFETY: zeros are an action: the default one, without flags and mask.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// What a signal does now.
fn action_of(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it only asks, and writes to what is ours.
    match unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } {
        // SAFETY: it was written to.
        0 => Some(unsafe { action.assume_init() }),
        _ => None,
    }
}

/// Whether a fault of [`copy`] in this thread would be noticed: the kernel calls our handler first,
/// and may call it. Three system calls.
pub(crate) fn is_guarded() -> bool {
    let ours = on_fault as InfoHandler as usize;
    let is_ours = |signal| action_of(signal).is_some_and(|action| action.sa_sigaction == ours);
    cfg!(target_arch = "x86_64") && SIGNALS.into_iter().all(is_ours) && !is_blocked()
}

/// Whether this thread lets one of the signals wait. Of a fault, that would be the end.
fn is_blocked() -> bool {
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: it only asks, and writes to what is ours, which is read then.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr()) != 0
            || SIGNALS.into_iter().any(|s| libc::sigismember(blocked.as_ptr(), s) != 0)
    }
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
    let which = usize::from(signal != SIGSEGV);
    let Some(Previous { action, spent }) = PREVIOUS[which].get() else { return };
    let is_once = action.sa_flags & libc::SA_RESETHAND != 0;
    let is_spent = is_once && spent.swap(true, Ordering::Relaxed);
    match action.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        // The kernel lets nobody ignore a fault.
        libc::SIG_DFL | libc::SIG_IGN => end(signal, is_fault),
        _ if is_spent => end(signal, is_fault),
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
    // SAFETY: the default action, and a signal to this thread, which waits until the handler has
    // returned.
    unsafe {
        libc::sigaction(signal, &default_action(), std::ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};
    use std::sync::atomic::{AtomicU32, AtomicUsize};

    /// What a program of [`as_a_program`] does.
    const WHAT: &str = "URXE_TEST_SIGNALS";
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

    /// No test of its own: a program with signals of its own. It succeeds with `true`.
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
        std::process::exit(i32::from(!is_right));
    }

    fn run(what: &str) -> ExitStatus {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let name = "memory::guarded_copy::tests::as_a_program";
        let program = program.args(["--exact", name, "--nocapture"]).env(WHAT, what);
        program.output().unwrap().status
    }

    #[test]
    fn faults_of_the_program_reach_the_handler_that_it_has() {
        for what in ["handles", "handles plainly", "handles what is sent"] {
            let status = run(what);
            assert!(status.success(), "{what}: {status}");
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
            assert!(status.success(), "{what}: {status}");
        }
    }
}
