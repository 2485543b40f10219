; The launcher: a program is a Buffer of 64-bit words, called as the `self` of a builtin function.
;
;   words 0-4  number of inputs, bytes of the output, number of scratch areas, number of stages,
;              heavy (release the GIL while running)
;   then       the scratch sizes
;   then       the stages: address, units, grain, offset of the params in bytes from word 0
;   then       the params

; PyMethodDef: name, function, calling convention, docstring
%MethodDef = type { ptr, ptr, i32, ptr }

declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyCMethod_New(ptr, ptr, ptr, ptr)
declare ptr @PyType_FromSpec(ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_Append(ptr, ptr)

; Word `i` of a program.
define internal i64 @word(ptr %program, i64 %i) alwaysinline nounwind {
  %at = getelementptr i64, ptr %program, i64 %i
  %w = load i64, ptr %at
  ret i64 %w
}

; Runs the stages in the floating point mode of the helpers: other libraries change the caller's.
define internal void @run_stages(ptr %program, i64 %first, ptr %ptrs, ptr %error) nounwind {
  %default = load i64, ptr @default_float_mode
  %mode = call i64 @float_mode()
  %same = icmp eq i64 %mode, %default
  br i1 %same, label %plain, label %switch
plain:
  call void @run_each_stage(ptr %program, i64 %first, ptr %ptrs, ptr %error)
  ret void
switch:
  call void @set_float_mode(i64 %default)
  call void @run_each_stage(ptr %program, i64 %first, ptr %ptrs, ptr %error)
  call void @set_float_mode(i64 %mode)
  ret void
}

; Runs stages from word `first` on, one after the other; stops after a stage that found an error.
define internal void @run_each_stage(ptr %program, i64 %first, ptr %ptrs, ptr %error) nounwind {
entry:
  %job = alloca %Job
  %stages = call i64 @word(ptr %program, i64 3)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %finished ]
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  %more = icmp slt i64 %i, %stages
  %go = and i1 %good, %more
  br i1 %go, label %stage, label %done
stage:
  %skip = mul i64 %i, 4
  %at = add i64 %first, %skip
  %words = getelementptr i64, ptr %program, i64 %at
  %address = call i64 @word(ptr %words, i64 0)
  %units = call i64 @word(ptr %words, i64 1)
  %grain = call i64 @word(ptr %words, i64 2)
  %offset = call i64 @word(ptr %words, i64 3)
  %kernel = inttoptr i64 %address to ptr
  %params = getelementptr i8, ptr %program, i64 %offset
  %several = icmp sgt i64 %units, %grain
  br i1 %several, label %split, label %whole
whole:
  %some = icmp sgt i64 %units, 0
  br i1 %some, label %direct, label %finished
direct:
  call void %kernel(ptr %params, ptr %ptrs, i64 0, i64 %units, ptr %error)
  br label %finished
split:
  %less = sub i64 %units, 1
  %full = udiv i64 %less, %grain
  %tasks = add i64 %full, 1
  %j0 = insertvalue %Job poison, ptr %kernel, 0
  %j1 = insertvalue %Job %j0, ptr %params, 1
  %j2 = insertvalue %Job %j1, ptr %ptrs, 2
  %j3 = insertvalue %Job %j2, i64 %units, 3
  %j4 = insertvalue %Job %j3, i64 %grain, 4
  %j5 = insertvalue %Job %j4, i64 %tasks, 5
  %j6 = insertvalue %Job %j5, ptr %error, 6
  store %Job %j6, ptr %job
  call void @run_job(ptr %job)
  br label %finished
finished:
  %i.next = add i64 %i, 1
  br label %next
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
  %index = add i64 %i, 5
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

; program(*buffers): the output Buffer, or (code, position, value) if a kernel found an error.
define internal ptr @py_run(ptr %self, ptr %args, i64 %count) nounwind {
entry:
  %error = alloca [3 x i64]
  %program.at = getelementptr %Buffer, ptr %self, i32 0, i32 2
  %program = load ptr, ptr %program.at
  %inputs = call i64 @word(ptr %program, i64 0)
  %scratch = call i64 @word(ptr %program, i64 2)
  %right = call i1 @check_count(ptr @name.program, i64 %count, i64 %inputs)
  br i1 %right, label %start, label %failed
start:
  %in.out = add i64 %inputs, 1
  %total = add i64 %in.out, %scratch
  %ptrs = alloca ptr, i64 %total
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
  %size.index = add i64 %k, 5
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
  call void @llvm.memset.p0.i64(ptr %error, i8 0, i64 24, i1 false)
  %first = add i64 %scratch, 5
  %heavy.word = call i64 @word(ptr %program, i64 4)
  %heavy = icmp ne i64 %heavy.word, 0
  br i1 %heavy, label %unlocked, label %locked
unlocked:
  %state = call ptr @PyEval_SaveThread()
  call void @run_stages(ptr %program, i64 %first, ptr %ptrs, ptr %error)
  call void @PyEval_RestoreThread(ptr %state)
  br label %ran
locked:
  call void @run_stages(ptr %program, i64 %first, ptr %ptrs, ptr %error)
  br label %ran
ran:
  call void @free_scratch(ptr %program, ptr %area.ptrs, i64 %scratch)
  %code = load i64, ptr %error
  %good = icmp eq i64 %code, 0
  br i1 %good, label %done, label %report
report:
  call void @Py_DecRef(ptr %out)
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
    i64 %limit, i32 %advice, i32 %clock, i32 %mask_how, i64 %threads) nounwind {
entry:
  store i64 %limit, ptr @cache_limit
  store i32 %advice, ptr @huge_advice
  store i32 %clock, ptr @clock_id
  store i32 %mask_how, ptr @mask_how
  store i64 %threads, ptr @threads
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
