; The caching allocator.
;
; Everything here runs with the GIL held, which is the allocator's only lock.
;
; Sizes are rounded up to classes: multiples of 64 bytes up to 512, then eight steps per power of
; two (at most 12.5% more than asked for). Each class has a list of free blocks, linked through the
; blocks themselves. Blocks of 1 MiB and more are also on a list in order of their release, so that
; the longest unused one can be given back to the system when the cache is over its limit.

; A free block: next and previous of its class, newer and older of all large ones, size. A small
; block has only the first field.
%Free = type { ptr, ptr, ptr, ptr, i64 }

@classes = internal global [320 x ptr] zeroinitializer, align 64
@newest = internal global ptr null
@oldest = internal global ptr null
@live = internal global i64 0        ; bytes asked for by buffers that are alive
@peak = internal global i64 0
@cached = internal global i64 0      ; bytes of free blocks
@cache_limit = internal global i64 0
@most = internal global i64 0        ; bytes that a block may have
@huge_advice = internal global i32 -1 ; MADV_HUGEPAGE, or -1 where there is none

@PyExc_MemoryError = external global ptr

declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

declare ptr @PyErr_Format(ptr, ptr, ...)

; ------------------------------------------------------------------------------------------ classes

; The class of a size, and the size of its blocks.
define internal { i64, i64 } @class_of(i64 %nbytes) alwaysinline nounwind {
  %one = call i64 @llvm.umax.i64(i64 %nbytes, i64 1)
  %last = sub i64 %one, 1
  %zeros = call i64 @llvm.ctlz.i64(i64 %last, i1 false)
  %log = sub i64 63, %zeros
  %e = call i64 @llvm.smax.i64(i64 %log, i64 9)
  %shift = sub i64 %e, 3
  %step = lshr i64 %last, %shift       ; 8..15, or 0..7 below 512 bytes
  %octave = sub i64 %e, 9
  %base = shl i64 %octave, 3
  %index = add i64 %base, %step
  %steps = add i64 %step, 1
  %size = shl i64 %steps, %shift
  %a = insertvalue { i64, i64 } poison, i64 %index, 0
  %b = insertvalue { i64, i64 } %a, i64 %size, 1
  ret { i64, i64 } %b
}

define internal i1 @is_large(i64 %size) alwaysinline nounwind {
  %large = icmp uge i64 %size, 1048576
  ret i1 %large
}

; Takes a large block out of both of its lists.
define internal void @unlink(ptr %block, ptr %head) nounwind {
  %next = load ptr, ptr %block
  %prev.at = getelementptr %Free, ptr %block, i32 0, i32 1
  %prev = load ptr, ptr %prev.at
  %first = icmp eq ptr %prev, null
  %next.at = select i1 %first, ptr %head, ptr %prev  ; "next" is the first field of a block
  store ptr %next, ptr %next.at
  %last = icmp eq ptr %next, null
  br i1 %last, label %order, label %relink
relink:
  %next.prev = getelementptr %Free, ptr %next, i32 0, i32 1
  store ptr %prev, ptr %next.prev
  br label %order
order:
  %newer.at = getelementptr %Free, ptr %block, i32 0, i32 2
  %older.at = getelementptr %Free, ptr %block, i32 0, i32 3
  %newer = load ptr, ptr %newer.at
  %older = load ptr, ptr %older.at
  %newer.none = icmp eq ptr %newer, null
  %newer.older = getelementptr %Free, ptr %newer, i32 0, i32 3
  %older.to = select i1 %newer.none, ptr @newest, ptr %newer.older
  store ptr %older, ptr %older.to
  %older.none = icmp eq ptr %older, null
  %older.newer = getelementptr %Free, ptr %older, i32 0, i32 2
  %newer.to = select i1 %older.none, ptr @oldest, ptr %older.newer
  store ptr %newer, ptr %newer.to
  ret void
}

; Puts a large block at the front of both lists.
define internal void @link_large(ptr %block, ptr %head) nounwind {
  %next = load ptr, ptr %head
  %older = load ptr, ptr @newest
  store ptr %next, ptr %block
  %prev.at = getelementptr %Free, ptr %block, i32 0, i32 1
  store ptr null, ptr %prev.at
  %newer.at = getelementptr %Free, ptr %block, i32 0, i32 2
  store ptr null, ptr %newer.at
  %older.at = getelementptr %Free, ptr %block, i32 0, i32 3
  store ptr %older, ptr %older.at
  store ptr %block, ptr %head
  store ptr %block, ptr @newest
  %older.none = icmp eq ptr %older, null
  %older.newer = getelementptr %Free, ptr %older, i32 0, i32 2
  %newer.to = select i1 %older.none, ptr @oldest, ptr %older.newer
  store ptr %block, ptr %newer.to
  %next.none = icmp eq ptr %next, null
  br i1 %next.none, label %done, label %back
back:
  %next.prev = getelementptr %Free, ptr %next, i32 0, i32 1
  store ptr %block, ptr %next.prev
  br label %done
done:
  ret void
}

; ------------------------------------------------------------------------------------------ blocks

; Gives every free block back to the system; returns how many bytes that were.
define internal i64 @release_all() noinline nounwind {
entry:
  %freed = load i64, ptr @cached
  br label %class
class:
  %i = phi i64 [ 0, %entry ], [ %i.next, %emptied ]
  %head = getelementptr ptr, ptr @classes, i64 %i
  br label %block
block:
  %b = load ptr, ptr %head
  %none = icmp eq ptr %b, null
  br i1 %none, label %emptied, label %drop
drop:
  %next = load ptr, ptr %b
  store ptr %next, ptr %head
  call void @free(ptr %b)
  br label %block
emptied:
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 320
  br i1 %more, label %class, label %done
done:
  store ptr null, ptr @newest
  store ptr null, ptr @oldest
  store i64 0, ptr @cached
  ret i64 %freed
}

; A block from the system for so many bytes, or null. Huge pages save most of the page faults of a
; large array. The last bytes get small ones, so that no memory is taken that nobody asked for.
define internal ptr @system_block(i64 %size, i64 %nbytes) noinline nounwind {
  %slot = alloca ptr
  %large = call i1 @is_large(i64 %size)
  %huge = icmp uge i64 %size, 4194304
  %paged = select i1 %large, i64 4096, i64 64
  %align = select i1 %huge, i64 2097152, i64 %paged
  %status = call i32 @posix_memalign(ptr %slot, i64 %align, i64 %size)
  %ok = icmp eq i32 %status, 0
  br i1 %ok, label %got, label %retry
retry:
  %freed = call i64 @release_all()
  %status2 = call i32 @posix_memalign(ptr %slot, i64 %align, i64 %size)
  %ok2 = icmp eq i32 %status2, 0
  br i1 %ok2, label %got, label %failed
failed:
  ret ptr null
got:
  %block = load ptr, ptr %slot
  %advice = load i32, ptr @huge_advice
  %known = icmp sge i32 %advice, 0
  %advise = and i1 %huge, %known
  br i1 %advise, label %tell, label %done
tell:
  %whole = and i64 %nbytes, -2097152
  %ignored = call i32 @madvise(ptr %block, i64 %whole, i32 %advice)
  br label %done
done:
  ret ptr %block
}

; Frees the longest unused large blocks until `size` more bytes fit; false if they can't.
define internal i1 @make_room(i64 %size) noinline nounwind {
entry:
  br label %check
check:
  %cached = load i64, ptr @cached
  %limit = load i64, ptr @cache_limit
  %after = add i64 %cached, %size
  %fits = icmp sle i64 %after, %limit
  br i1 %fits, label %yes, label %evict
yes:
  ret i1 true
no:
  ret i1 false
evict:
  %too.big = icmp sgt i64 %size, %limit
  %victim = load ptr, ptr @oldest
  %none = icmp eq ptr %victim, null
  %stop = or i1 %too.big, %none
  br i1 %stop, label %no, label %drop
drop:
  %size.at = getelementptr %Free, ptr %victim, i32 0, i32 4
  %victim.size = load i64, ptr %size.at
  %class = call { i64, i64 } @class_of(i64 %victim.size)
  %index = extractvalue { i64, i64 } %class, 0
  %head = getelementptr ptr, ptr @classes, i64 %index
  call void @unlink(ptr %victim, ptr %head)
  call void @free(ptr %victim)
  %less = sub i64 %cached, %victim.size
  store i64 %less, ptr @cached
  br label %check
}

; A block of at least `nbytes` bytes and its size, or null with MemoryError set.
define internal { ptr, i64 } @block_new(i64 %nbytes) nounwind {
entry:
  %most = load i64, ptr @most
  %absurd = icmp ugt i64 %nbytes, %most
  br i1 %absurd, label %failed, label %find
find:
  %class = call { i64, i64 } @class_of(i64 %nbytes)
  %index = extractvalue { i64, i64 } %class, 0
  %size = extractvalue { i64, i64 } %class, 1
  %head = getelementptr ptr, ptr @classes, i64 %index
  %free = load ptr, ptr %head
  %empty = icmp eq ptr %free, null
  br i1 %empty, label %system, label %reuse
reuse:
  %cached = load i64, ptr @cached
  %less = sub i64 %cached, %size
  store i64 %less, ptr @cached
  %large = call i1 @is_large(i64 %size)
  br i1 %large, label %reuse.large, label %reuse.small
reuse.small:
  %next = load ptr, ptr %free
  store ptr %next, ptr %head
  br label %got
reuse.large:
  call void @unlink(ptr %free, ptr %head)
  br label %got
system:
  %fresh = call ptr @system_block(i64 %size, i64 %nbytes)
  %null = icmp eq ptr %fresh, null
  br i1 %null, label %failed, label %got
got:
  %block = phi ptr [ %free, %reuse.small ], [ %free, %reuse.large ], [ %fresh, %system ]
  %live = load i64, ptr @live
  %more = add i64 %live, %nbytes
  store i64 %more, ptr @live
  %peak = load i64, ptr @peak
  %top = call i64 @llvm.smax.i64(i64 %peak, i64 %more)
  store i64 %top, ptr @peak
  %r1 = insertvalue { ptr, i64 } poison, ptr %block, 0
  %r2 = insertvalue { ptr, i64 } %r1, i64 %size, 1
  ret { ptr, i64 } %r2
failed:
  %type = load ptr, ptr @PyExc_MemoryError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type, ptr @text.memory, i64 %nbytes)
  ret { ptr, i64 } zeroinitializer
}

; Returns the block of `size` bytes that served a request for `nbytes`.
define internal void @block_free(ptr %block, i64 %size, i64 %nbytes) nounwind {
  %live = load i64, ptr @live
  %less = sub i64 %live, %nbytes
  store i64 %less, ptr @live
  %cached = load i64, ptr @cached
  %limit = load i64, ptr @cache_limit
  %after = add i64 %cached, %size
  %fits = icmp sle i64 %after, %limit
  br i1 %fits, label %keep, label %crowded
crowded:
  %room = call i1 @make_room(i64 %size)
  br i1 %room, label %keep, label %drop
drop:
  call void @free(ptr %block)
  ret void
keep:
  %before = load i64, ptr @cached
  %now = add i64 %before, %size
  store i64 %now, ptr @cached
  %class = call { i64, i64 } @class_of(i64 %size)
  %index = extractvalue { i64, i64 } %class, 0
  %head = getelementptr ptr, ptr @classes, i64 %index
  %large = call i1 @is_large(i64 %size)
  br i1 %large, label %keep.large, label %keep.small
keep.small:
  %next = load ptr, ptr %head
  store ptr %next, ptr %block
  store ptr %block, ptr %head
  ret void
keep.large:
  %size.at = getelementptr %Free, ptr %block, i32 0, i32 4
  store i64 %size, ptr %size.at
  call void @link_large(ptr %block, ptr %head)
  ret void
}
