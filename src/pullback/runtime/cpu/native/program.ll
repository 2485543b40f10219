; The launcher: a program is a Buffer of 64-bit words, called as the `self` of a builtin function.
;
;   words 0-5  number of inputs, bytes of the output, number of scratch areas, heavy (release the
;              GIL while running), number of derived pointers, word at which the stages start
;   then       the scratch sizes
;   then       the derived pointers: slot of the base, offset in bytes
;   then       the stages, as a list (see stages.ll)
;
; The pointers that kernels get: output, inputs, scratch areas, derived pointers. The word before
; them is their number.

; PyMethodDef: name, function, calling convention, docstring
%MethodDef = type { ptr, ptr, i32, ptr }

declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyCMethod_New(ptr, ptr, ptr, ptr)
declare ptr @PyType_FromSpec(ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_Append(ptr, ptr)

; Runs the stages in the floating point mode of the helpers: other libraries change the caller's.
define internal void @run_program(ptr %program, ptr %ptrs, ptr %error) nounwind {
  %first = call i64 @word(ptr %program, i64 5)
  %list = getelementptr i64, ptr %program, i64 %first
  %default = load i64, ptr @default_float_mode
  %mode = call i64 @float_mode()
  %same = icmp eq i64 %mode, %default
  br i1 %same, label %plain, label %switch
plain:
  call void @run_list(ptr %list, ptr %ptrs, ptr %error)
  ret void
switch:
  call void @set_float_mode(i64 %default)
  call void @run_list(ptr %list, ptr %ptrs, ptr %error)
  call void @set_float_mode(i64 %mode)
  ret void
}

; Fills in the derived pointers from slot `first` on.
define internal void @derive_pointers(ptr %program, ptr %ptrs, i64 %first, i64 %count) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %start, label %done
start:
  %scratch = call i64 @word(ptr %program, i64 2)
  %pairs.at = add i64 %scratch, 6
  %pairs = getelementptr i64, ptr %program, i64 %pairs.at
  %targets = getelementptr ptr, ptr %ptrs, i64 %first
  br label %next
next:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %pair = getelementptr [2 x i64], ptr %pairs, i64 %i
  %base = call i64 @word(ptr %pair, i64 0)
  %offset = call i64 @word(ptr %pair, i64 1)
  %base.at = getelementptr ptr, ptr %ptrs, i64 %base
  %pointer = load ptr, ptr %base.at
  %moved = getelementptr i8, ptr %pointer, i64 %offset
  %target = getelementptr ptr, ptr %targets, i64 %i
  store ptr %moved, ptr %target
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Gives back the first `count` scratch areas.
define internal void @free_scratch(ptr %program, ptr %areas, i64 %count) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %drop ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %drop, label %done
drop:
  %index = add i64 %i, 6
  %nbytes = call i64 @word(ptr %program, i64 %index)
  %class = call { i64, i64 } @class_of(i64 %nbytes)
  %size = extractvalue { i64, i64 } %class, 1
  %at = getelementptr ptr, ptr %areas, i64 %i
  %block = load ptr, ptr %at
  call void @block_free(ptr %block, i64 %size, i64 %nbytes)
  %i.next = add i64 %i, 1
  br label %next
done:
  ret void
}

; program(*buffers): the output Buffer, or (code, position, value) if a kernel found an error; or
; the exception of whoever handled a signal.
define internal ptr @py_run(ptr %self, ptr %args, i64 %count) nounwind {
entry:
  %error = alloca %Error
  %run.state = alloca %Run
  %program.at = getelementptr %Buffer, ptr %self, i32 0, i32 2
  %program = load ptr, ptr %program.at
  %inputs = call i64 @word(ptr %program, i64 0)
  %scratch = call i64 @word(ptr %program, i64 2)
  %right = call i1 @check_count(ptr @name.program, i64 %count, i64 %inputs)
  br i1 %right, label %start, label %failed
start:
  %derived = call i64 @word(ptr %program, i64 4)
  %in.out = add i64 %inputs, 1
  %given = add i64 %in.out, %scratch
  %total = add i64 %given, %derived
  %room = add i64 %total, 1
  %table = alloca ptr, i64 %room
  store i64 %total, ptr %table
  %ptrs = getelementptr ptr, ptr %table, i64 1
  br label %input
input:
  %i = phi i64 [ 0, %start ], [ %i.next, %take ]
  %more = icmp slt i64 %i, %inputs
  br i1 %more, label %check, label %output
check:
  %arg.at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg.at
  %i.next = add i64 %i, 1
  %exact = call i1 @check_buffer(ptr %arg, i64 %i.next)
  br i1 %exact, label %take, label %failed
take:
  %data.at = getelementptr %Buffer, ptr %arg, i32 0, i32 2
  %data = load ptr, ptr %data.at
  %ptr.at = getelementptr ptr, ptr %ptrs, i64 %i.next
  store ptr %data, ptr %ptr.at
  br label %input

output:
  %out.nbytes = call i64 @word(ptr %program, i64 1)
  %out = call ptr @buffer_empty(i64 %out.nbytes)
  %no.out = icmp eq ptr %out, null
  br i1 %no.out, label %failed, label %areas
areas:
  %out.data.at = getelementptr %Buffer, ptr %out, i32 0, i32 2
  %out.data = load ptr, ptr %out.data.at
  store ptr %out.data, ptr %ptrs
  %area.ptrs = getelementptr ptr, ptr %ptrs, i64 %in.out
  br label %area
area:
  %k = phi i64 [ 0, %areas ], [ %k.next, %keep ]
  %more.areas = icmp slt i64 %k, %scratch
  br i1 %more.areas, label %allocate, label %run
allocate:
  %size.index = add i64 %k, 6
  %nbytes = call i64 @word(ptr %program, i64 %size.index)
  %got = call { ptr, i64 } @block_new(i64 %nbytes)
  %block = extractvalue { ptr, i64 } %got, 0
  %none = icmp eq ptr %block, null
  br i1 %none, label %starved, label %keep
keep:
  %area.at = getelementptr ptr, ptr %area.ptrs, i64 %k
  store ptr %block, ptr %area.at
  %k.next = add i64 %k, 1
  br label %area
starved:
  call void @free_scratch(ptr %program, ptr %area.ptrs, i64 %k)
  call void @Py_DecRef(ptr %out)
  br label %failed

run:
  call void @derive_pointers(ptr %program, ptr %ptrs, i64 %given, i64 %derived)
  %heavy.word = call i64 @word(ptr %program, i64 3)
  %heavy = icmp ne i64 %heavy.word, 0
  br i1 %heavy, label %unlocked, label %locked
unlocked:
  %state = call ptr @PyEval_SaveThread()
  call void @begin_run(ptr %error, ptr %run.state, ptr %state)
  call void @run_program(ptr %program, ptr %ptrs, ptr %error)
  call void @PyEval_RestoreThread(ptr %state)
  br label %ran
locked:
  call void @begin_run(ptr %error, ptr %run.state, ptr null)
  call void @run_program(ptr %program, ptr %ptrs, ptr %error)
  br label %ran
ran:
  call void @free_scratch(ptr %program, ptr %area.ptrs, i64 %scratch)
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  br i1 %good, label %done, label %report
report:
  call void @Py_DecRef(ptr %out)
  %stopped = call i1 @is_stopped(ptr %error)
  br i1 %stopped, label %failed, label %describe
describe:
  %position.at = getelementptr i64, ptr %error, i64 1
  %position = load i64, ptr %position.at
  %value.at = getelementptr i64, ptr %error, i64 2
  %value = load i64, ptr %value.at
  %tuple = call ptr (ptr, ...) @Py_BuildValue(ptr @text.error, i64 %code, i64 %position, i64 %value)
  ret ptr %tuple
failed:
  ret ptr null
done:
  ret ptr %out
}

; make(words): the callable program whose description is the Buffer `words`.
define internal ptr @py_make(ptr %module, ptr %args, i64 %count) nounwind {
  %right = call i1 @check_count(ptr @name.make, i64 %count, i64 1)
  br i1 %right, label %check, label %failed
check:
  %words = load ptr, ptr %args
  %exact = call i1 @check_buffer(ptr %words, i64 1)
  br i1 %exact, label %make, label %failed
make:
  %result = call ptr @PyCMethod_New(ptr @method.run, ptr %words, ptr null, ptr null)
  ret ptr %result
failed:
  ret ptr null
}

; The type and the functions: a list of Buffer and the functions of @methods, or null.
define ptr @pullback_native(
    i64 %limit, i64 %most, i32 %advice, i32 %clock, i32 %mask_how, i64 %threads,
    i64 %main) nounwind {
entry:
  store i64 %limit, ptr @cache_limit
  store i64 %most, ptr @most
  store i32 %advice, ptr @huge_advice
  store i32 %clock, ptr @clock_id
  store i32 %mask_how, ptr @mask_how
  store i64 %threads, ptr @threads
  call void @note_main_thread(i64 %main)
  call void @pool_reset()
  %type = call ptr @PyType_FromSpec(ptr @buffer_spec)
  %no.type = icmp eq ptr %type, null
  br i1 %no.type, label %failed, label %list
list:
  store ptr %type, ptr @buffer_type
  %result = call ptr @PyList_New(i64 0)
  %no.list = icmp eq ptr %result, null
  br i1 %no.list, label %failed, label %add.type
add.type:
  %s0 = call i32 @PyList_Append(ptr %result, ptr %type)
  %bad0 = icmp ne i32 %s0, 0
  br i1 %bad0, label %failed, label %next
next:
  %i = phi i64 [ 0, %add.type ], [ %i.next, %added ]
  %method = getelementptr %MethodDef, ptr @methods, i64 %i
  %name = load ptr, ptr %method
  %end = icmp eq ptr %name, null
  br i1 %end, label %done, label %add
add:
  %function = call ptr @PyCMethod_New(ptr %method, ptr null, ptr null, ptr null)
  %no.function = icmp eq ptr %function, null
  br i1 %no.function, label %failed, label %append
append:
  %status = call i32 @PyList_Append(ptr %result, ptr %function)
  call void @Py_DecRef(ptr %function)
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %failed, label %added
added:
  %i.next = add i64 %i, 1
  br label %next
failed:
  ret ptr null
done:
  ret ptr %result
}
