! SPDX-License-Identifier: Apache-2.0
! Trains a small model from Fortran by the functions of encore/encore.h.
module encore
  use, intrinsic :: iso_c_binding
  implicit none

  type, bind(c) :: encore_step_result
    integer(c_size_t) :: size
    integer(c_int64_t) :: step
    real(c_double) :: loss, gradient_norm, milliseconds, device_milliseconds
    integer(c_int64_t) :: tokens
    integer(c_int32_t) :: mode, skipped
    integer(c_int64_t) :: graph_nodes, eager_launches, fallbacks, graph_bytes
  end type

  interface
    integer(c_int) function encore_runtime_create(threads, runtime) bind(c)
      import :: c_int, c_ptr
      integer(c_int), value :: threads
      type(c_ptr), intent(out) :: runtime
    end function
    integer(c_int) function encore_runtime_destroy(runtime) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: runtime
    end function
    integer(c_int) function encore_configuration_create(configuration) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: configuration
    end function
    integer(c_int) function encore_configuration_set(configuration, assignments) bind(c)
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: configuration
      character(kind=c_char), intent(in) :: assignments(*)
    end function
    integer(c_int) function encore_configuration_destroy(configuration) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: configuration
    end function
    integer(c_int) function encore_trainer_create(runtime, configuration, trainer) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: runtime, configuration
      type(c_ptr), intent(out) :: trainer
    end function
    integer(c_int) function encore_trainer_set_batch(trainer, ids, labels, shape) bind(c)
      import :: c_int, c_ptr, c_int32_t, c_int64_t
      type(c_ptr), value :: trainer
      integer(c_int32_t), intent(in) :: ids(*), labels(*)
      integer(c_int64_t), intent(in) :: shape(3)
    end function
    integer(c_int) function encore_trainer_step(trainer, learning_rate, step) bind(c)
      import :: c_int, c_ptr, c_double, encore_step_result
      type(c_ptr), value :: trainer
      real(c_double), value :: learning_rate
      type(encore_step_result), intent(inout) :: step
    end function
    integer(c_int) function encore_trainer_destroy(trainer) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: trainer
    end function
    type(c_ptr) function encore_last_error() bind(c)
      import :: c_ptr
    end function
    integer(c_size_t) function strlen(text) bind(c)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
    end function
  end interface

contains

  ! Stops with the library's own sentence.
  subroutine check(status)
    integer(c_int), intent(in) :: status
    character(kind=c_char), pointer :: sentence(:)
    if (status == 0) return
    call c_f_pointer(encore_last_error(), sentence, [strlen(encore_last_error())])
    print *, sentence
    stop 1
  end subroutine
end module

program example
  use encore
  implicit none
  type(c_ptr) :: runtime, configuration, trainer, none
  type(encore_step_result) :: step
  integer(c_int32_t) :: ids(32, 2), labels(32, 2)   ! the first dimension is the fastest: [sequences, tokens] in C
  real(c_double) :: first
  character(len=16) :: backend
  integer :: i

  backend = 'openmp'
  if (command_argument_count() > 0) call get_command_argument(1, backend)
  call check(encore_runtime_create(2_c_int, runtime))
  call check(encore_configuration_create(configuration))
  call check(encore_configuration_set(configuration, 'model.family=llama model.layers=2 model.hidden=32 ' // &
    'model.heads=4 model.ffn=64 model.vocab=50 model.seq=32 train.microbatch=2 backend=' // trim(backend) // c_null_char))
  call check(encore_trainer_create(runtime, configuration, trainer))

  ids(:, 1) = [(i, i = 0, 31)]
  ids(:, 2) = ids(:, 1)
  labels = ids + 1
  step%size = c_sizeof(step)
  do i = 1, 20
    call check(encore_trainer_set_batch(trainer, ids, labels, [1_c_int64_t, 2_c_int64_t, 32_c_int64_t]))
    call check(encore_trainer_step(trainer, 0.01_c_double, step))
    if (i == 1) first = step%loss
  end do
  print '(a, f6.3, a, f6.3, a, i0, a)', 'loss ', first, ', then ', step%loss, '; the last step replayed ', &
    step%graph_nodes, ' graph nodes'

  ! A mistake is a status, and a sentence that names it.
  if (encore_configuration_set(configuration, 'train.lr=fast' // c_null_char) /= 2) stop 2
  if (strlen(encore_last_error()) == 0) stop 3
  if (encore_runtime_destroy(runtime) /= 1) stop 4   ! the trainer still needs it

  call check(encore_trainer_destroy(trainer))
  call check(encore_configuration_destroy(configuration))
  call check(encore_runtime_destroy(runtime))
  none = c_null_ptr
  call check(encore_trainer_destroy(none))
  if (step%loss > first / 2) stop 5
end program
