; The Python type Buffer and the functions that make one.

; refcount, type, data, nbytes, owner (or null), size of the block (0 if the memory is the owner's),
; weak references
%Buffer = type { i64, ptr, ptr, i64, ptr, i64, ptr }

@buffer_type = internal global ptr null

@PyExc_TypeError = external global ptr
@PyExc_ValueError = external global ptr

declare ptr @PyObject_Malloc(i64)
declare void @PyObject_Free(ptr)
declare ptr @PyObject_Init(ptr, ptr)
declare void @PyObject_ClearWeakRefs(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyErr_NoMemory()
declare ptr @PyErr_Occurred()
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @Py_BuildValue(ptr, ...)
declare i32 @PyBuffer_FillInfo(ptr, ptr, ptr, i64, i32, i32)

; A new Buffer; a reference to `owner` is handed over. Null with an error set if there is no memory.
define internal ptr @buffer_new(ptr %data, i64 %nbytes, ptr %owner, i64 %block) nounwind {
  %size = ptrtoint ptr getelementptr (%Buffer, ptr null, i32 1) to i64
  %memory = call ptr @PyObject_Malloc(i64 %size)
  %none = icmp eq ptr %memory, null
  br i1 %none, label %failed, label %fill
failed:
  %e = call ptr @PyErr_NoMemory()
  ret ptr null
fill:
  %type = load ptr, ptr @buffer_type
  %self = call ptr @PyObject_Init(ptr %memory, ptr %type)
  %data.at = getelementptr %Buffer, ptr %self, i32 0, i32 2
  store ptr %data, ptr %data.at
  %nbytes.at = getelementptr %Buffer, ptr %self, i32 0, i32 3
  store i64 %nbytes, ptr %nbytes.at
  %owner.at = getelementptr %Buffer, ptr %self, i32 0, i32 4
  store ptr %owner, ptr %owner.at
  %block.at = getelementptr %Buffer, ptr %self, i32 0, i32 5
  store i64 %block, ptr %block.at
  %weak.at = getelementptr %Buffer, ptr %self, i32 0, i32 6
  store ptr null, ptr %weak.at
  ret ptr %self
}

; A new Buffer with memory of its own.
define internal ptr @buffer_empty(i64 %nbytes) nounwind {
  %got = call { ptr, i64 } @block_new(i64 %nbytes)
  %block = extractvalue { ptr, i64 } %got, 0
  %size = extractvalue { ptr, i64 } %got, 1
  %none = icmp eq ptr %block, null
  br i1 %none, label %failed, label %make
make:
  %self = call ptr @buffer_new(ptr %block, i64 %nbytes, ptr null, i64 %size)
  %lost = icmp eq ptr %self, null
  br i1 %lost, label %undo, label %done
undo:
  call void @block_free(ptr %block, i64 %size, i64 %nbytes)
  br label %failed
failed:
  ret ptr null
done:
  ret ptr %self
}

define internal void @buffer_dealloc(ptr %self) nounwind {
  %weak.at = getelementptr %Buffer, ptr %self, i32 0, i32 6
  %weak = load ptr, ptr %weak.at
  %watched = icmp ne ptr %weak, null
  br i1 %watched, label %clear, label %memory
clear:
  call void @PyObject_ClearWeakRefs(ptr %self)
  br label %memory
memory:
  %owner.at = getelementptr %Buffer, ptr %self, i32 0, i32 4
  %owner = load ptr, ptr %owner.at
  %own = icmp eq ptr %owner, null
  br i1 %own, label %release, label %forget
release:
  %data.at = getelementptr %Buffer, ptr %self, i32 0, i32 2
  %data = load ptr, ptr %data.at
  %nbytes.at = getelementptr %Buffer, ptr %self, i32 0, i32 3
  %nbytes = load i64, ptr %nbytes.at
  %block.at = getelementptr %Buffer, ptr %self, i32 0, i32 5
  %block = load i64, ptr %block.at
  call void @block_free(ptr %data, i64 %block, i64 %nbytes)
  br label %object
forget:
  call void @Py_DecRef(ptr %owner)
  br label %object
object:
  %type.at = getelementptr %Buffer, ptr %self, i32 0, i32 1
  %type = load ptr, ptr %type.at
  call void @PyObject_Free(ptr %self)
  call void @Py_DecRef(ptr %type)
  ret void
}

; The buffer protocol: writable bytes. The view holds a reference, so there is nothing to release.
define internal i32 @buffer_get(ptr %self, ptr %view, i32 %flags) nounwind {
  %data.at = getelementptr %Buffer, ptr %self, i32 0, i32 2
  %data = load ptr, ptr %data.at
  %nbytes.at = getelementptr %Buffer, ptr %self, i32 0, i32 3
  %nbytes = load i64, ptr %nbytes.at
  %status = call i32 @PyBuffer_FillInfo(
      ptr %view, ptr %self, ptr %data, i64 %nbytes, i32 0, i32 %flags)
  ret i32 %status
}

; PyMemberDef: name, Py_T_PYSSIZET (19) or _Py_T_OBJECT (6, None for null), offset,
; Py_READONLY (1), docstring
%MemberDef = type { ptr, i32, i64, i32, ptr }
@buffer_members = internal global [5 x %MemberDef] [
  %MemberDef { ptr @name.address, i32 19, i64 16, i32 1, ptr null },
  %MemberDef { ptr @name.nbytes, i32 19, i64 24, i32 1, ptr null },
  %MemberDef { ptr @name.owner, i32 6, i64 32, i32 1, ptr null },
  %MemberDef { ptr @name.weak, i32 19, i64 48, i32 1, ptr null },
  %MemberDef zeroinitializer]

; PyType_Slot: Py_bf_getbuffer 1, Py_tp_dealloc 52, Py_tp_doc 56, Py_tp_members 72
%Slot = type { i32, ptr }
@buffer_slots = internal global [5 x %Slot] [
  %Slot { i32 1, ptr @buffer_get },
  %Slot { i32 52, ptr @buffer_dealloc },
  %Slot { i32 56, ptr @text.buffer.doc },
  %Slot { i32 72, ptr @buffer_members },
  %Slot zeroinitializer]

; PyType_Spec: name, size of an instance, of an item, flags, slots. The flags are
; Py_TPFLAGS_HAVE_VERSION_TAG (1 << 18, the default), _DISALLOW_INSTANTIATION (1 << 7) and
; _IMMUTABLETYPE (1 << 8).
@buffer_spec = internal global { ptr, i32, i32, i32, ptr } {
  ptr @text.buffer, i32 56, i32 0, i32 262528, ptr @buffer_slots }

; ---------------------------------------------------------------------------- functions for Python

; Whether `object` is exactly a Buffer; otherwise TypeError is set, naming argument `position`.
define internal i1 @check_buffer(ptr %object, i64 %position) alwaysinline nounwind {
  %type.at = getelementptr %Buffer, ptr %object, i32 0, i32 1
  %type = load ptr, ptr %type.at
  %expected = load ptr, ptr @buffer_type
  %exact = icmp eq ptr %type, %expected
  br i1 %exact, label %yes, label %no
yes:
  ret i1 true
no:
  call void @wrong_type(ptr %object, i64 %position)
  ret i1 false
}

define internal void @wrong_type(ptr %object, i64 %position) noinline cold nounwind {
  %type.at = getelementptr %Buffer, ptr %object, i32 0, i32 1
  %type = load ptr, ptr %type.at
  %error = load ptr, ptr @PyExc_TypeError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %error, ptr @text.type, i64 %position, ptr %type)
  ret void
}

; Whether the count of arguments is right; otherwise TypeError is set.
define internal i1 @check_count(ptr %name, i64 %count, i64 %expected) alwaysinline nounwind {
  %right = icmp eq i64 %count, %expected
  br i1 %right, label %yes, label %no
yes:
  ret i1 true
no:
  call void @wrong_count(ptr %name, i64 %count, i64 %expected)
  ret i1 false
}

define internal void @wrong_count(ptr %name, i64 %count, i64 %expected) noinline cold nounwind {
  %error = load ptr, ptr @PyExc_TypeError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(
      ptr %error, ptr @text.count, ptr %name, i64 %expected, i64 %count)
  ret void
}

; An int >= 0 that fits 63 bits, or -1 with an error set.
define internal i64 @read_size(ptr %object) nounwind {
  %n = call i64 @PyLong_AsLongLong(ptr %object)
  %fine = icmp sge i64 %n, 0
  br i1 %fine, label %done, label %negative
negative:
  %error = call ptr @PyErr_Occurred()
  %set = icmp ne ptr %error, null
  br i1 %set, label %failed, label %value
value:
  %type = load ptr, ptr @PyExc_ValueError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type, ptr @text.negative, i64 %n)
  br label %failed
failed:
  ret i64 -1
done:
  ret i64 %n
}

; empty(nbytes)
define internal ptr @py_empty(ptr %module, ptr %args, i64 %count) nounwind {
  %right = call i1 @check_count(ptr @name.empty, i64 %count, i64 1)
  br i1 %right, label %read, label %failed
read:
  %arg = load ptr, ptr %args
  %nbytes = call i64 @read_size(ptr %arg)
  %bad = icmp slt i64 %nbytes, 0
  br i1 %bad, label %failed, label %make
make:
  %self = call ptr @buffer_empty(i64 %nbytes)
  ret ptr %self
failed:
  ret ptr null
}

; view(buffer, byte_offset): keeps the owner of `buffer` alive, or `buffer` if it has none.
define internal ptr @py_view(ptr %module, ptr %args, i64 %count) nounwind {
  %right = call i1 @check_count(ptr @name.view, i64 %count, i64 2)
  br i1 %right, label %check, label %failed
check:
  %base = load ptr, ptr %args
  %exact = call i1 @check_buffer(ptr %base, i64 1)
  br i1 %exact, label %read, label %failed
read:
  %offset.at = getelementptr ptr, ptr %args, i64 1
  %offset.object = load ptr, ptr %offset.at
  ; A flipped view may be flipped back: its offset is negative, which planned strides keep inside.
  %offset = call i64 @PyLong_AsLongLong(ptr %offset.object)
  %suspect = icmp eq i64 %offset, -1
  br i1 %suspect, label %verify, label %range
verify:
  %error = call ptr @PyErr_Occurred()
  %bad = icmp ne ptr %error, null
  br i1 %bad, label %failed, label %range
range:
  %nbytes.at = getelementptr %Buffer, ptr %base, i32 0, i32 3
  %nbytes = load i64, ptr %nbytes.at
  %outside = icmp sgt i64 %offset, %nbytes
  br i1 %outside, label %beyond, label %make
beyond:
  %type = load ptr, ptr @PyExc_ValueError
  %e = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %type, ptr @text.offset, i64 %offset, i64 %nbytes)
  br label %failed
make:
  %data.at = getelementptr %Buffer, ptr %base, i32 0, i32 2
  %data = load ptr, ptr %data.at
  %shifted = getelementptr i8, ptr %data, i64 %offset
  %rest = sub i64 %nbytes, %offset
  %owner.at = getelementptr %Buffer, ptr %base, i32 0, i32 4
  %owner = load ptr, ptr %owner.at
  %own = icmp eq ptr %owner, null
  %root = select i1 %own, ptr %base, ptr %owner
  call void @Py_IncRef(ptr %root)
  %self = call ptr @buffer_new(ptr %shifted, i64 %rest, ptr %root, i64 0)
  %lost = icmp eq ptr %self, null
  br i1 %lost, label %undo, label %done
undo:
  call void @Py_DecRef(ptr %root)
  br label %failed
failed:
  ret ptr null
done:
  ret ptr %self
}

; wrap(address, nbytes, owner): foreign memory, alive as long as `owner`.
define internal ptr @py_wrap(ptr %module, ptr %args, i64 %count) nounwind {
  %right = call i1 @check_count(ptr @name.wrap, i64 %count, i64 3)
  br i1 %right, label %read, label %failed
read:
  %address.object = load ptr, ptr %args
  %address = call i64 @read_size(ptr %address.object)
  %bad.address = icmp slt i64 %address, 0
  br i1 %bad.address, label %failed, label %size
size:
  %nbytes.at = getelementptr ptr, ptr %args, i64 1
  %nbytes.object = load ptr, ptr %nbytes.at
  %nbytes = call i64 @read_size(ptr %nbytes.object)
  %bad = icmp slt i64 %nbytes, 0
  br i1 %bad, label %failed, label %make
make:
  %owner.at = getelementptr ptr, ptr %args, i64 2
  %owner = load ptr, ptr %owner.at
  %data = inttoptr i64 %address to ptr
  call void @Py_IncRef(ptr %owner)
  %self = call ptr @buffer_new(ptr %data, i64 %nbytes, ptr %owner, i64 0)
  %lost = icmp eq ptr %self, null
  br i1 %lost, label %undo, label %done
undo:
  call void @Py_DecRef(ptr %owner)
  br label %failed
failed:
  ret ptr null
done:
  ret ptr %self
}

; memory()
define internal ptr @py_memory(ptr %module, ptr %none) nounwind {
  %live = load i64, ptr @live
  %peak = load i64, ptr @peak
  %cached = load i64, ptr @cached
  %limit = load i64, ptr @cache_limit
  %dict = call ptr (ptr, ...) @Py_BuildValue(ptr @text.stats,
      ptr @name.live, i64 %live, ptr @name.peak, i64 %peak,
      ptr @name.cached, i64 %cached, ptr @name.limit, i64 %limit)
  ret ptr %dict
}

; reset_peak(): the peak starts again from what is alive now.
define internal ptr @py_reset_peak(ptr %module, ptr %none) nounwind {
  %live = load i64, ptr @live
  store i64 %live, ptr @peak
  %void = call ptr (ptr, ...) @Py_BuildValue(ptr @text.none)
  ret ptr %void
}

; release_cached(): the bytes given back to the system.
define internal ptr @py_release_cached(ptr %module, ptr %none) nounwind {
  %freed = call i64 @release_all()
  %result = call ptr @PyLong_FromLongLong(i64 %freed)
  ret ptr %result
}

; set_cache_limit(nbytes)
define internal ptr @py_set_cache_limit(ptr %module, ptr %args, i64 %count) nounwind {
  %right = call i1 @check_count(ptr @name.set_cache_limit, i64 %count, i64 1)
  br i1 %right, label %read, label %failed
read:
  %arg = load ptr, ptr %args
  %limit = call i64 @read_size(ptr %arg)
  %bad = icmp slt i64 %limit, 0
  br i1 %bad, label %failed, label %apply
apply:
  store i64 %limit, ptr @cache_limit
  %large.gone = call i1 @make_room(i64 0)
  br i1 %large.gone, label %done, label %small
small:
  %freed = call i64 @release_all()
  br label %done
done:
  %void = call ptr (ptr, ...) @Py_BuildValue(ptr @text.none)
  ret ptr %void
failed:
  ret ptr null
}
